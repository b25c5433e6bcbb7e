// A LangGraph thread with a PostgreSQL checkpointer. A turn is one invocation: one node adds the model's answer, two add a
// result each. Each leaves a checkpoint, durable before the next begins; so does the input, which says nothing.

import { Annotation, DeltaChannel, END, START, StateGraph } from "@langchain/langgraph";
import { PostgresSaver } from "@langchain/langgraph-checkpoint-postgres";
import pg from "pg";
import { Clock } from "./workload.mjs";

// What runs say, by their id.
const says = new Map();

function graphOf(channel, checkpointer) {
  const add = (all, more) => all.concat(more);
  const messages =
    channel === "delta"
      ? () => new DeltaChannel((all, writes) => all.concat(...writes), { initialValueFactory: () => [] })
      : Annotation({ reducer: add, default: () => [] });
  const State = Annotation.Root({ messages, run: Annotation(), turn: Annotation() });
  const said = ({ run, turn }) => says.get(run)[turn];
  const tool = (i) => (state) => ({ messages: [{ role: "tool", tool_call_id: said(state).answer.calls[i].id, content: said(state).results[i] }] });
  return new StateGraph(State)
    .addNode("model", (state) => ({ messages: [{ role: "assistant", content: said(state).answer.text, tool_calls: said(state).answer.calls }] }))
    .addNode("first", tool(0))
    .addNode("second", tool(1))
    .addEdge(START, "model").addEdge("model", "first").addEdge("first", "second").addEdge("second", END)
    .compile({ checkpointer });
}

// langgraph opens a peer: play(id, turns) returns a clock.
export async function langgraph(channel, connection) {
  const pool = new pg.Pool({ connectionString: connection, max: 64 });
  pool.on("error", () => {}); // a connection that ends while idle: the next query says what is wrong
  const saver = new PostgresSaver(pool);
  await saver.setup();
  const graph = graphOf(channel, saver);
  return {
    async play(id, turns) {
      says.set(id, turns);
      const clock = new Clock();
      for (let turn = 0; turn < turns.length; turn++) {
        await graph.invoke({ run: id, turn }, { configurable: { thread_id: id }, durability: "sync" });
        clock.turn();
      }
      return clock;
    },
    close: () => pool.end(),
  };
}
