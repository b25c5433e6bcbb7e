// The agent of the tests, as in agent.py.
import { appendFileSync, linkSync, readFileSync, rmSync, writeFileSync } from "node:fs";

const { Failure, serve } = await import(process.env.CLIENTS + "/waymark.mjs");
const { LEDGER, AT, FREEZE, OWN, TAKES, AGENT } = process.env;

async function moment(name) {
  if (TAKES) await new Promise((resolve) => setTimeout(resolve, 1000 * TAKES));
  if (AT !== name) return;
  try { writeFileSync(LEDGER + ".was-there", String(process.pid), { flag: "wx" }); } catch { return; }
  process.kill(process.pid, FREEZE ? "SIGSTOP" : "SIGKILL");
  await new Promise(setImmediate); // the signal arrives here
}

function put(name, key, text) {
  const path = `${LEDGER}.${name}.${key}`, fresh = `${path}.${process.pid}.new`;
  writeFileSync(fresh, text);
  try { linkSync(fresh, path); } catch (e) { if (e.code !== "EEXIST") throw e; }
  rmSync(fresh);
  return readFileSync(path, "utf8");
}


const effect = (name) => async (args, call) => {
  await moment("before:" + name);
  if (name === "pay") {
    put(name, call.key, "done");
  } else if (name === "book") {
    const said = put(name, call.key, "done");
    if (said !== "done") {
      if (Number(said.split(" ")[1]) > call.epoch) throw new Failure("another executor was told that this was not done");
      writeFileSync(`${LEDGER}.book.${call.key}`, "done");
    }
  } else {
    appendFileSync(LEDGER, `${name} ${call.key}\n`);
  }
  await moment("after:" + name);
  if (name === "fail") throw new Failure("it is broken", { type: "broken" });
  if (name === "odd") return { odd: 1n };
  if (name === "deep") {
    const deep = [];
    deep.push(deep);
    return deep;
  }
  if (name === "gone") throw undefined;
  if (name === "exit") throw "it is gone";
  if (name === "half") return "half a character: \ud83d";
  if (name === "slow") await new Promise((resolve) => call.signal.addEventListener("abort", resolve));
  return name + " is done";
};

async function model(request) {
  await moment(`model:${request.turn}`);
  const plan = JSON.parse(request.messages.flatMap((m) => m.parts).find((p) => p.content?.startsWith("[[")).content);
  if (request.turn > plan.length) return { text: "All is done.", usage: { input_tokens: 3, output_tokens: 2 } };
  return { calls: plan[request.turn - 1].map((name) => ({ name, arguments: {} })) };
}

async function own(run) {
  for (const [i, names] of JSON.parse(run.task).entries()) {
    for (const name of names) {
      if (name === "ask") {
        await run.set("answer", await run.ask("q1", "May it go on?"));
      } else if (name === "nested") {
        await run.set("answer", await run.tool("nested", name, {}, "pure", () => run.ask("q1", "May it go on?")));
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
    verify: ({ key, epoch }) => (put("book", key, `refused ${epoch}`) === "done" ? { outcome: "done", result: "book is done" } : { outcome: "not_done" }),
  },
  mail: { replay: "hold", run: effect("mail") },
  charge: { replay: "hold", run: effect("charge"), ask: "May it charge?" },
  fail: { replay: "hold", run: effect("fail") },
  odd: { replay: "hold", run: effect("odd") },
  deep: { replay: "hold", run: effect("deep") },
  gone: { replay: "hold", run: effect("gone") },
  exit: { replay: "hold", run: effect("exit") },
  half: { replay: "hold", run: effect("half") },
  slow: { replay: "hold", run: effect("slow") },
};
if (OWN) {
  const { book, ...others } = tools;
  serve(AGENT ?? "clerk", { tools: others, run: own });
} else {
  serve(AGENT ?? "clerk", { tools, model, system: "It ends no line: \u2028." });
}
