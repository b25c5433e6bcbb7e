// The agent of the tests, as in agent.py.
import { appendFileSync, existsSync, openSync, readFileSync } from "node:fs";

const { Failure, serve } = await import(process.env.CLIENTS + "/waymark.mjs");
const { LEDGER, AT, FREEZE, OWN } = process.env;

function moment(name) {
  if (AT !== name) return;
  try { openSync(LEDGER + ".was-there", "wx"); } catch { return; }
  process.kill(process.pid, FREEZE ? "SIGSTOP" : "SIGKILL");
}

const has = (line) => existsSync(LEDGER) && readFileSync(LEDGER, "utf8").includes(line + "\n");
const turn = () => new Promise(setImmediate); // a signal to oneself arrives there

const effect = (name) => async (args, call) => {
  moment("before:" + name);
  await turn();
  const line = `${name} ${call.key}`;
  if (name !== "pay" || !has(line)) appendFileSync(LEDGER, line + "\n");
  moment("after:" + name);
  await turn();
  if (name === "fail") throw new Failure("it is broken", { type: "broken" });
  if (name === "slow") await new Promise((resolve) => call.signal.addEventListener("abort", resolve));
  return name + " is done";
};

async function model(request) {
  moment(`model:${request.turn}`);
  await turn();
  const plan = JSON.parse(request.messages.flatMap((m) => m.parts).find((p) => p.content?.startsWith("[[")).content);
  if (request.turn > plan.length) return { text: "All is done.", usage: { input_tokens: 3, output_tokens: 2 } };
  return { calls: plan[request.turn - 1].map((name) => ({ name, arguments: {} })) };
}

async function own(run) {
  for (const [i, names] of JSON.parse(run.task).entries()) {
    for (const name of names) {
      if (name === "ask") {
        await run.set("answer", await run.ask("q1", "May it go on?"));
      } else if (name === "listen") {
        const heard = await run.signals(true);
        await run.set("heard", heard.map((s) => s.payload));
        await run.consume(...heard.map((s) => s.id));
      } else {
        try { await run.tool(`${name}-${i}`, name, {}, tools[name].replay, effect(name)); } catch (e) {
          if (!(e instanceof Failure)) throw e;
          await run.say({ role: "assistant", parts: [{ type: "text", content: `${name}: ${e.message} (${e.fields.type})` }] });
        }
      }
    }
  }
  return { answer: await run.get("answer"), heard: await run.get("heard") };
}

const tools = {
  look: { replay: "pure", run: effect("look") },
  pay: { replay: "idempotent", run: effect("pay") },
  book: {
    replay: "verify", run: effect("book"),
    verify: ({ key }) => (has("book " + key) ? { outcome: "done", result: "book is done" } : { outcome: "not_done" }),
  },
  mail: { replay: "hold", run: effect("mail") },
  charge: { replay: "hold", run: effect("charge"), ask: "May it charge?" },
  fail: { replay: "hold", run: effect("fail") },
  slow: { replay: "hold", run: effect("slow") },
};
if (OWN) {
  const { book, ...others } = tools;
  serve("clerk", { tools: others, run: own });
} else {
  serve("clerk", { tools, model });
}
