// An agent on the host SDK of the Synadia Agent Protocol, npm @synadia-ai/agent-service. Of Waymark it knows only
// what the page about events says: it publishes plain CloudEvents over its own NATS connection, and the executor that
// they name is the instance by which its host sends heartbeats. It asks no daemon of ours, and reads nothing.
//
//   node agent.mjs <host module> <NATS context file> <run id> <heartbeat interval in seconds>
//
// It prints its instance as one line of JSON once everything is published, then waits for prompts until it is killed.
import { readFile } from "node:fs/promises";
import { connect, headers } from "@nats-io/transport-node";

const [host, contextFile, run, interval] = process.argv.slice(2);
const { AgentService } = await import(host);
const { url, user, password } = JSON.parse(await readFile(contextFile, "utf8"));
const nc = await connect({ servers: url, user, pass: password, name: "agent" });

const service = new AgentService({
  nc,
  agent: "gardener",
  owner: "e2e",
  name: run,
  description: "waters the beds",
  heartbeatIntervalS: Number(interval),
});
service.onPrompt(async (envelope, response) => response.send(`on it: ${envelope.prompt}`));
await service.start();
const executor = service.instanceId;

// One CloudEvent in binary mode; the stream's acknowledgement is the reply.
let count = 0;
async function publish(type, data, turn) {
  const h = headers();
  h.set("ce-specversion", "1.0");
  h.set("ce-id", `${run}-${++count}`);
  h.set("ce-source", `/waymark/default/${executor}`);
  h.set("ce-type", `io.waymark.${type}.v1`);
  h.set("ce-subject", run);
  h.set("ce-time", new Date().toISOString());
  h.set("ce-datacontenttype", "application/json");
  if (turn) h.set("ce-turn", String(turn));
  const reply = await nc.request(`waymark.events.default.${run}`, JSON.stringify(data), { headers: h, timeout: 30_000 });
  const ack = reply.json();
  if (ack.error) throw new Error(`${type}: ${ack.error.description}`);
}

const say = (role, content) => ({ role, parts: [{ type: "text", content }] });
await publish("run.started", { agent: "gardener", executor, task: "water the beds" });
await publish("turn.started", { turn: 1, messages: [say("user", "Water the beds.")] }, 1);
const call = { tool_call_id: "c1", name: "moisture", arguments: { bed: "A" }, replay: "hold" };
await publish("turn.answered", { turn: 1, message: say("assistant", "I look at the soil first."), calls: [call] }, 1);
await publish("tool.called", { tool_call_id: "c1", name: "moisture" }, 1);
console.log(JSON.stringify({ executor, prompt: service.subject.prompt }));
await nc.closed();
