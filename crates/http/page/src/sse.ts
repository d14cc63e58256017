// Server-sent events, from bytes as they come: a pure parser that knows neither sockets nor JSON.

/** Takes text in pieces of any size and hands out the data of each event that is complete. */
export class EventParser {
  private rest = "";
  private data: string[] = [];

  push(text: string): string[] {
    const events: string[] = [];
    this.rest += text;
    for (;;) {
      const end = this.rest.indexOf("\n");
      if (end < 0) return events;
      const line = this.rest.slice(0, end).replace(/\r$/, "");
      this.rest = this.rest.slice(end + 1);
      if (line === "") {
        if (this.data.length > 0) events.push(this.data.join("\n"));
        this.data = [];
      } else if (line.startsWith("data:")) {
        this.data.push(line.slice(line.startsWith("data: ") ? 6 : 5));
      }
    }
  }
}
