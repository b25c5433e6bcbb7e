import { appendFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { serve } from "./waymark.mjs";

/** The tool. If it ran twice for a letter, sent.txt would have the line twice. */
function send({ to }) {
  appendFileSync("sent.txt", `a letter to ${to}\n`);
  return "sent";
}

/** The model: three seconds for each answer. */
async function model({ turn }) {
  console.log("asking the model, turn", turn);
  await setTimeout(3000);
  const people = ["Ann", "Bob", "Cleo", "Dan"];
  if (turn > people.length) return { text: "All letters are sent." };
  return { calls: [{ name: "send", arguments: { to: people[turn - 1] } }] };
}

serve("courier", { model, tools: { send: {
  replay: "hold", run: send, description: "Sends a letter.",
  parameters: { type: "object", properties: { to: { type: "string" } }, required: ["to"] },
} } });
