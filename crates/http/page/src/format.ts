// Numbers for people.

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number): string {
  let unit = 0;
  while (count >= 1024 && unit + 1 < BYTES.length) {
    count /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(count) : count.toFixed(1)} ${BYTES[unit]}`;
}

export function count(number: number): string {
  const units = ["", " K", " M", " B", " T"];
  let unit = 0;
  while (number >= 999.95 && unit + 1 < units.length) {
    number /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(number) : number.toFixed(1)}${units[unit]}`;
}

export function rate(perSecond: number): string {
  return perSecond >= 100 ? perSecond.toFixed(0) : perSecond.toFixed(1);
}

export function seconds(milliseconds: number): string {
  const s = milliseconds / 1000;
  return s < 10 ? `${s.toFixed(1)} s` : s < 120 ? `${Math.round(s)} s` : `${Math.round(s / 60)} min`;
}

/** How long answers paused. */
export function pause(milliseconds: number): string {
  return milliseconds < 1000 ? `${milliseconds} ms` : seconds(milliseconds);
}

export function duration(s: number): string {
  const [days, hours, minutes] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(s)} s`;
}

/** A device among those of its machine: `RPC0[host:50052]` is `device 0`. */
export function deviceName(name: string): string {
  const number = /^RPC(\d+)\[.*\]$/.exec(name)?.[1];
  return number === undefined ? name : `device ${number}`;
}

/** `one`, `one and two`, `one, two and three`. */
export function list(parts: string[]): string {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** `block 3`, `blocks 0–14`, nothing. */
export function blocks([first, end]: [number, number]): string {
  if (end <= first) return "";
  return end - first === 1 ? `block ${first}` : `blocks ${first}–${end - 1}`;
}
