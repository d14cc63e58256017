// What happens per second, from counters that only grow.

/** The last minute of a counter. */
export class Series {
  private readonly samples: { at: number; value: number }[] = [];

  constructor(private readonly span = 60) {}

  /** Takes a value; `at` is in seconds, by the clock of the one who counts. */
  push(at: number, value: number): void {
    const last = this.samples.at(-1);
    // A server that was started anew counts from the beginning.
    if (last && (at < last.at || value < last.value)) this.samples.length = 0;
    if (last && at === last.at) return;
    this.samples.push({ at, value });
    while (this.samples.length > 2 && this.samples[0]!.at < at - this.span) this.samples.shift();
  }

  /** Per second over the last seconds. */
  now(over = 2): number {
    const last = this.samples.at(-1);
    if (!last) return 0;
    const recent = this.samples.findIndex(({ at }) => at >= last.at - over - 0.5);
    // Where samples are further apart, between the last two.
    const first = this.samples[Math.min(recent, this.samples.length - 2)];
    return first && last.at > first.at ? (last.value - first.value) / (last.at - first.at) : 0;
  }

  /** Per second between neighbours: seconds before now, and the rate. */
  steps(): { ago: number; rate: number }[] {
    const last = this.samples.at(-1);
    return this.samples.slice(1).map(({ at, value }, before) => {
      const { at: from, value: had } = this.samples[before]!;
      return { ago: last!.at - at, rate: (value - had) / Math.max(at - from, 1e-3) };
    });
  }
}
