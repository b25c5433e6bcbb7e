// A graph of LangGraph decides what is done next, and its tools are durable: waymark worker -- node langgraph.mjs
import { appendFileSync } from "node:fs";
import { AIMessage, mapChatMessagesToStoredMessages, mapStoredMessagesToChatMessages } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { serve } from "./waymark.mjs";

/** The tool. If it ran twice for a letter, sent.txt would have the line twice. */
function send({ to }) {
  appendFileSync("sent.txt", `send ${to}\n`);
  return "sent";
}

/** A model with a script, in place of a provider's: it names its calls differently each time that it is asked. */
const people = ["Ann", "Bob"], model = { async invoke(messages) {
  const to = people[messages.filter((m) => m.getType() === "tool").length];
  return new AIMessage(to ? { content: "", tool_calls: [{ id: crypto.randomUUID(), name: "send", args: { to } }] } : "All letters are sent.");
} };

async function work(run) {
  let asked = 0;
  const ask = async ({ messages }) => ({ // an answer is recorded, so its calls have the same ids after a restart
    messages: mapStoredMessagesToChatMessages(await run.tool(`model-${++asked}`, "model", {}, "pure",
      async () => mapChatMessagesToStoredMessages([await model.invoke(messages)]))),
  });
  const tools = [tool((args, { toolCall }) => run.tool(`${asked}-${toolCall.id}`, "send", args, "hold", send), {
    name: "send", description: "Sends a letter.", schema: { type: "object", properties: { to: { type: "string" } }, required: ["to"] },
  })];
  const graph = new StateGraph(MessagesAnnotation).addNode("model", ask)
    .addNode("tools", new ToolNode(tools, { handleToolErrors: false })) // errors reach the worker
    .addEdge(START, "model").addConditionalEdges("model", toolsCondition).addEdge("tools", "model").compile();
  const { messages } = await graph.invoke({ messages: [{ role: "user", content: run.task }] });
  return { text: messages.at(-1).content };
}

serve("clerk", { run: work });
