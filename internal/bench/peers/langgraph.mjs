// A LangGraph thread with a PostgreSQL checkpointer. A turn is one invocation: the user's message is its input, then three
// nodes add the call, the result and the answer. Each of the four leaves a checkpoint, durable before the next begins.

import { Annotation, DeltaChannel, END, START, StateGraph } from "@langchain/langgraph";
import { PostgresSaver } from "@langchain/langgraph-checkpoint-postgres";
import pg from "pg";
import { sizes, textOf, turnBoundaries } from "./workload.mjs";

function graphOf(channel, checkpointer) {
  const add = (all, more) => all.concat(more);
  const messages =
    channel === "delta"
      ? () => new DeltaChannel((all, writes) => all.concat(...writes), { initialValueFactory: () => [] })
      : Annotation({ reducer: add, default: () => [] });
  const State = Annotation.Root({ messages, seed: Annotation() });
  const say = (role, part, size) => (state) => ({ messages: [{ role, content: textOf(state.seed + part)(size) }] });
  return new StateGraph(State)
    .addNode("call", say("assistant", 1, sizes.called))
    .addNode("tool", say("tool", 2, sizes.returned))
    .addNode("answer", say("assistant", 3, sizes.ended))
    .addEdge(START, "call").addEdge("call", "tool").addEdge("tool", "answer").addEdge("answer", END)
    .compile({ checkpointer });
}

// langgraph opens a peer: play(id, turns) returns the times of its boundaries in ms, recover(id, turns) that of a thread's state.
export async function langgraph(channel, connection) {
  const open = async () => {
    const pool = new pg.Pool({ connectionString: connection, max: 64 });
    const saver = new PostgresSaver(pool);
    await saver.setup();
    return { graph: graphOf(channel, saver), close: () => pool.end() };
  };
  const { graph, close } = await open();
  return {
    async play(id, turns) {
      const times = [];
      for (let turn = 1; turn <= turns; turn++) {
        const seed = turn * 8 + id.length;
        const input = { messages: [{ role: "user", content: textOf(seed)(sizes.started) }], seed };
        const began = performance.now();
        await graph.invoke(input, { configurable: { thread_id: id }, durability: "sync" });
        const each = (performance.now() - began) / turnBoundaries;
        for (let i = 0; i < turnBoundaries; i++) times.push(each);
      }
      return times;
    },
    // The state as another process gets it: pool and graph are new, connected already.
    async recover(id, turns) {
      const other = await open();
      await other.graph.getState({ configurable: { thread_id: "nobody" } });
      const began = performance.now();
      const state = await other.graph.getState({ configurable: { thread_id: id } });
      const took = performance.now() - began;
      await other.close();
      if (state.values.messages.length !== turns * turnBoundaries) {
        throw new Error(`thread ${id} has ${state.values.messages.length} messages, not ${turns * turnBoundaries}`);
      }
      return took;
    },
    close,
  };
}
