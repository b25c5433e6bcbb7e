// The Vercel AI SDK decides what is done next, and its tools are durable: waymark worker -- node ai-sdk.mjs
import { appendFileSync } from "node:fs";
import { generateText, jsonSchema, stepCountIs, tool, wrapLanguageModel } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { serve } from "./waymark.mjs";

/** The tool. If it ran twice for a letter, sent.txt would have the line twice. */
function send({ to }) {
  appendFileSync("sent.txt", `send ${to}\n`);
  return "sent";
}

/** A model with a script, in place of a provider's: it names its calls differently each time that it is asked. */
const people = ["Ann", "Bob"], model = new MockLanguageModelV3({ async doGenerate({ prompt }) {
  const to = people[prompt.filter((m) => m.role === "tool").length];
  return {
    content: to ? [{ type: "tool-call", toolCallId: crypto.randomUUID(), toolName: "send", input: JSON.stringify({ to }) }]
      : [{ type: "text", text: "All letters are sent." }],
    finishReason: { unified: to ? "tool-calls" : "stop" }, usage: { inputTokens: {}, outputTokens: {} }, warnings: [],
  };
} });

async function work(run) {
  let asked = 0;
  const middleware = { // an answer is recorded, so its calls have the same ids after a restart
    specificationVersion: "v3", wrapGenerate: ({ doGenerate }) => run.tool(`model-${++asked}`, "model", {}, "pure", doGenerate),
  };
  const { text } = await generateText({
    model: wrapLanguageModel({ model, middleware }), prompt: run.task, stopWhen: stepCountIs(20),
    tools: { send: tool({
      description: "Sends a letter.",
      inputSchema: jsonSchema({ type: "object", properties: { to: { type: "string" } }, required: ["to"] }),
      execute: (args, { toolCallId }) => run.tool(`${asked}-${toolCallId}`, "send", args, "hold", send),
    }) },
  });
  return { text };
}

serve("clerk", { run: work });
