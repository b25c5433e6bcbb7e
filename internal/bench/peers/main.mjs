// Measures other systems with the workload of "waymark bench" and writes a line of JSON each, for "waymark bench report".

import { createRequire } from "node:module";
import { cpus } from "node:os";
import { dbos } from "./dbos.mjs";
import { langgraph } from "./langgraph.mjs";
import { startPostgres } from "./postgres.mjs";
import { quantile, turnPayload } from "./workload.mjs";

const versionOf = (name) => createRequire(import.meta.url)(`./node_modules/${name}/package.json`).version;

// Several runs at once are short: their rate is what is looked for. 1,000 turns in an ordinary channel would take gigabytes, and with a
// delta channel many minutes: each turn loads what came before.
const many = [[16, 10], [64, 10]];
const peers = [
  { name: "dbos", system: `DBOS ${versionOf("@dbos-inc/dbos-sdk")}`, open: dbos, sizes: [[1, 10], [1, 50], [1, 200], [1, 1000], ...many], recovery: 200 },
  {
    name: "langgraph_delta", system: `LangGraph ${versionOf("@langchain/langgraph")}, delta channel`,
    open: (url) => langgraph("delta", url), sizes: [[1, 10], [1, 50], [1, 200], ...many], recovery: 200,
  },
  {
    name: "langgraph", system: `LangGraph ${versionOf("@langchain/langgraph")}`,
    open: (url) => langgraph("ordinary", url), sizes: [[1, 10], [1, 50], [1, 200], ...many], recovery: 200,
  },
];

const wanted = process.argv.slice(2);
const quick = process.env.PEERS_QUICK !== undefined;
const postgres = await startPostgres();
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, () => postgres.stop().finally(() => process.exit(1)));
}
try {
  for (const peer of peers.filter((p) => wanted.length === 0 || wanted.includes(p.name))) {
    const opened = await peer.open(await postgres.create(peer.name));
    await opened.play("warm-up", quick ? 2 : 20);
    for (const [runs, turns] of quick ? [[1, 3], [2, 2]] : peer.sizes) {
      const before = await postgres.stored(peer.name);
      const began = performance.now();
      const ids = Array.from({ length: runs }, (_, i) => `run-${runs}-${turns}-${i}`);
      const times = (await Promise.all(ids.map((id) => opened.play(id, turns)))).flat();
      const seconds = (performance.now() - began) / 1000;
      const after = await postgres.stored(peer.name);
      const payload = runs * turns * turnPayload;
      const line = {
        waymark_bench_peer: 1, system: peer.system, store: `PostgreSQL ${postgres.version}`, source: "make bench-peers", runs, turns,
        per_second: times.length / seconds, p50_us: quantile(times, 0.5) * 1000, p99_us: quantile(times, 0.99) * 1000,
        first_tenth_p50_us: runs === 1 ? quantile(times.slice(0, Math.max(4, times.length / 10)), 0.5) * 1000 : undefined,
        last_tenth_p50_us: runs === 1 ? quantile(times.slice(-Math.max(4, times.length / 10)), 0.5) * 1000 : undefined,
        stored_per_payload: (after.wal - before.wal) / payload, kept_per_payload: (after.kept - before.kept) / payload,
        machine: `${cpus().length} CPUs (${cpus()[0].model.trim()}), node ${process.versions.node}`, quick: quick || undefined,
      };
      if (runs === 1 && turns === (quick ? 3 : peer.recovery)) line.recovery_ms = await opened.recover(ids[0], turns);
      console.log(JSON.stringify(line));
    }
    await opened.close();
  }
} finally {
  await postgres.stop();
}
