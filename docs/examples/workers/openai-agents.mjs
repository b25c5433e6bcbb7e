// The OpenAI Agents SDK decides what is done next, and its tools are durable: waymark worker -- node openai-agents.mjs
import { appendFileSync } from "node:fs";
import { Agent, Runner, tool, Usage } from "@openai/agents-core";
import { serve } from "./waymark.mjs";

/** The tool. If it ran twice for a letter, sent.txt would have the line twice. */
function send({ to }) {
  appendFileSync("sent.txt", `send ${to}\n`);
  return "sent";
}

/** A model with a script, in place of a provider's: it names its calls differently each time that it is asked. */
const people = ["Ann", "Bob"], model = { async getResponse({ input }) {
  const to = people[input.filter((i) => i.type === "function_call_result").length];
  return { usage: {}, output: [to
    ? { type: "function_call", callId: crypto.randomUUID(), name: "send", arguments: JSON.stringify({ to }) }
    : { type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text: "All letters are sent." }] }] };
} };

async function work(run) {
  let asked = 0;
  const durable = { async getResponse(request) { // an answer is recorded, so its calls have the same ids after a restart
    const answer = await run.tool(`model-${++asked}`, "model", {}, "pure", () => model.getResponse(request));
    return { ...answer, usage: new Usage(answer.usage) };
  } };
  const agent = new Agent({ name: "clerk", model: durable, tools: [tool({
    name: "send", description: "Sends a letter.", errorFunction: null, // errors reach the worker
    parameters: { type: "object", properties: { to: { type: "string" } }, required: ["to"], additionalProperties: false },
    execute: (args, _, { toolCall }) => run.tool(`${asked}-${toolCall.callId}`, "send", args, "hold", send),
  })] });
  const { finalOutput } = await new Runner({ tracingDisabled: true }).run(agent, run.task, { maxTurns: 20 });
  return { text: finalOutput };
}

serve("clerk", { run: work });
