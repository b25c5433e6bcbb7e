// A client of "waymark worker" with no dependency: copy it. Logs go to standard error, console.log() too.
import { createInterface } from "node:readline";
import { inspect } from "node:util";

const out = process.stdout.write.bind(process.stdout), mine = new Map();
let ids = 0;
console.log = console.info = console.debug = console.error;
const say = (line) => out(JSON.stringify(line) + "\n");
const now = () => [performance.now(), Date.now()];

/** Leave the run: it waits, was cancelled, or has another executor. Let it pass. */
export class Stop extends Error { fields = { type: "stopped" }; }

/** A call failed. fields may be type, and in a tool or model of yours retryable, permanent (model), retry_at. */
export class Failure extends Error {
  constructor(message, fields = {}) { super(message); this.fields = fields; }
}

/** The lines about one request, in order. */
class Lines {
  #there = []; #waiting = [];
  put(line) { const next = this.#waiting.shift(); next ? next(line) : this.#there.push(line); }
  get() { return this.#there.length ? this.#there.shift() : new Promise((resolve) => this.#waiting.push(resolve)); }
}

let warned = false;
/** A result as it is after a restart. What is not JSON becomes text, since the tool has had its effect. */
function plain(result) {
  const copy = (replace) => JSON.parse(JSON.stringify(result, replace) ?? "null");
  try { return copy(); } catch (e) {
    if (!warned) console.error("waymark: a result is not JSON; parts of it are recorded as text:", e.message);
    warned = true;
    try { return copy((_, v) => (typeof v === "bigint" ? String(v) : v)); } catch { return inspect(result); }
  }
}

/** Returns while the tool may begin: within_ms from when that was asked, by both clocks, because a machine may sleep. */
async function begin(id, lines, answer, asked, run) {
  while (!answer || Math.max(performance.now() - asked[0], Date.now() - asked[1]) >= answer.within_ms) {
    asked = now();
    say({ id, begin: true, run });
    answer = await lines.get();
    if (!answer.go) throw new Stop(answer.stop ?? answer.error ?? "cancelled");
  }
}

/** A run of a program with its own loop. */
export class Run {
  constructor(m) { Object.assign(this, { id: m.run, signal: m.signal, task: m.task ?? "", epoch: m.epoch, messages: m.messages ?? [] }); }

  async #ask(request, id = `c${++ids}`, lines = new Lines()) {
    mine.set(id, lines);
    say({ id, run: this.id, ...request });
    const answer = await lines.get();
    if (!answer.go) mine.delete(id);
    if (answer.stop) throw new Stop(answer.stop);
    if (answer.error) throw new Failure(answer.error, { type: answer.type ?? "error" });
    return answer;
  }

  /** run(args, call) runs once for each id, also when the run goes on elsewhere. call.key is the same each time. */
  async tool(id, name, args, replay, run) {
    const asked = now(), own = `c${++ids}`, lines = new Lines();
    const call = await this.#ask({ do: "call", call: id, name, arguments: args, replay }, own, lines);
    if (!call.go) return call.result;
    call.signal = this.signal;
    if (replay === "hold" || replay === "verify") await begin(own, lines, call, asked, this.id);
    let result;
    try { result = plain(await run(args, call)); } catch (e) {
      const fields = { type: e?.name ?? "error", ...e?.fields };
      await this.#ask({ error: String(e?.message ?? e), ...fields }, own, lines);
      throw new Failure(String(e?.message ?? e), fields); // as after a restart
    }
    await this.#ask({ result }, own, lines);
    return result;
  }

  say(...messages) { return this.#ask({ do: "say", messages }); }
  async ask(name, question, more) { return (await this.#ask({ do: "ask", name, question, ...more })).payload; }
  async get(key) { return (await this.#ask({ do: "get", key })).value; }
  set(key, value) { return this.#ask({ do: "set", key, value }); }
  async signals(wait = false) { return (await this.#ask({ do: "signals", wait })).signals ?? []; }
  consume(...signals) { return this.#ask({ do: "consume", signals }); }
}

/** Works until the worker ends. tools[name] = { replay, run(args, call), verify(call) }. */
export function serve(agent, { tools = {}, model, run, ...hello }) {
  if (!model === !run) throw new TypeError("give serve() a model, or a run for a loop of your own");
  const theirs = new Map(), does = {
    model, run: async (m) => ({ output: await run(new Run(m)) }), verify: (m) => tools[m.name].verify(m),
    async tool(m, lines) {
      if (m.begin) await begin(m.id, lines);
      return { result: plain(await tools[m.name].run(m.arguments, m)) };
    },
  };
  const work = async (m, lines) => {
    let answer;
    try { answer = await does[m.do](m, lines); } catch (e) {
      answer = { error: String(e?.message ?? e), ...e?.fields };
    }
    theirs.delete(m.id);
    if (typeof answer !== "object" || !answer) answer = { error: `the answer is not an object: ${answer}` };
    try { say({ id: m.id, ...answer }); } catch (e) { say({ id: m.id, error: `the answer is not JSON: ${e.message}` }); }
  };
  const list = Object.entries(tools).map(([name, { run, verify, ...tool }]) => ({ name, ...tool }));
  say({ hello: { protocol: 1, agent, tools: list, ...(run && { own_loop: true }), ...hello } });
  createInterface({ input: process.stdin }).on("line", (line) => {
    const m = JSON.parse(line);
    if (m.do) {
      const stop = new AbortController(), lines = new Lines();
      theirs.set(m.id, { stop, lines });
      work({ ...m, signal: stop.signal }, lines);
    } else if (m.cancel) {
      theirs.get(m.cancel)?.stop.abort();
      theirs.get(m.cancel)?.lines.put({ stop: "cancelled" });
    } else (mine.get(m.id) ?? theirs.get(m.id)?.lines)?.put(m);
  }).on("close", () => process.exit(0));
}
