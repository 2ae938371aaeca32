// The event stream of a run: EventSource resumes by Last-Event-ID; this adds knowing when it is
// stale. The server sends something, if only a ping, at least every 5 s. After longer silence another
// call tells a control plane that is away from a connection that died, which is opened again.

import { get } from "./api.js";

const STALE_S = 10;
const NAMES = ["ping", "run", "workers", "point", "log", "checkpoint", "evaluation", "export", "report"];

export class RunStream {
  /** `handlers` by event name; `onState` gets "live", "stale" or "away", and seconds of silence. */
  constructor(runId, handlers, onState) {
    this.runId = runId;
    this.handlers = handlers;
    this.onState = onState;
    this.lastAt = Date.now();
    this.state = "";
    this.probing = false;
    this.open();
    this.timer = setInterval(() => this.check(), 1000);
  }

  open() {
    this.source?.close();
    this.openedAt = Date.now();
    const since = this.lastId ? `?since=${this.lastId}` : "";
    this.source = new EventSource(`/v1/runs/${encodeURIComponent(this.runId)}/events${since}`);
    for (const name of NAMES) {
      this.source.addEventListener(name, (event) => this.receive(name, event));
    }
  }

  receive(name, event) {
    this.lastAt = Date.now();
    if (event.lastEventId) this.lastId = event.lastEventId;
    this.set("live");
    this.handlers[name]?.(JSON.parse(event.data));
  }

  async check() {
    const silentS = (Date.now() - this.lastAt) / 1000;
    if (this.source.readyState === EventSource.CLOSED) await this.reopen();
    if (silentS < STALE_S) return;
    const answers = await this.probe();
    if (answers === null || this.closed || (Date.now() - this.lastAt) / 1000 < STALE_S) return;
    this.set(answers ? "stale" : "away", silentS);
    const connected = this.source.readyState === EventSource.OPEN;
    if (answers && connected && Date.now() - this.openedAt > 1000 * STALE_S) this.open();
  }

  /** After an answer that ended the stream for good: asks first, so that a 401 shows the sign-in. */
  async reopen() {
    if (this.probing) return;
    this.probing = true;
    try {
      await get(`/v1/runs/${encodeURIComponent(this.runId)}`, 3000);
      if (!this.closed) this.open();
    } catch {
      // Silence grows, and `check` says so.
    } finally {
      this.probing = false;
    }
  }

  async probe() {
    if (this.probing) return null;
    this.probing = true;
    try {
      return (await fetch("/healthz", { signal: AbortSignal.timeout(3000) })).ok;
    } catch {
      return false;
    } finally {
      this.probing = false;
    }
  }

  set(state, silentS = 0) {
    if (this.closed || (state === this.state && state === "live")) return;
    this.state = state;
    this.onState(state, silentS);
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
    this.source.close();
  }
}
