// Measures other systems with the workload of tools/bench and writes a line of JSON each, for "bench report".
// "main.mjs --turn" is the short measurement of whole turns. "make bench-turn" alternates it with case turn.

import { createRequire } from "node:module";
import { cpus } from "node:os";
import { dbos } from "./dbos.mjs";
import { langgraph } from "./langgraph.mjs";
import { startPostgres } from "./postgres.mjs";
import { restate } from "./restate.mjs";
import { quantile, turnPayload, turnsOf } from "./workload.mjs";

const versionOf = (name) => createRequire(import.meta.url)(`./node_modules/${name}/package.json`).version;

// onPostgres opens a peer on a database of its own, of a server that all of them share.
let postgres;
const onPostgres = (name, open) => async () => {
  postgres ??= await startPostgres();
  const peer = await open(await postgres.create(name));
  return { ...peer, store: `PostgreSQL ${postgres.version}`, stored: () => postgres.stored(name) };
};

// Several runs at once are short: their rate is what is looked for. 1,000 turns in an ordinary channel would take gigabytes, and with a
// delta channel many minutes: each turn loads what came before.
const one = [[1, 10], [1, 50], [1, 200]];
const many = [[16, 40], [64, 20]];
const peers = [
  {
    name: "restate", system: `Restate ${versionOf("@restatedev/restate-server")}`, sizes: [...one, [1, 1000], ...many, [256, 10]],
    open: async () => {
      const peer = await restate();
      return { ...peer, store: "its own", stored: async () => ({ device: peer.written() }) };
    },
  },
  { name: "dbos", system: `DBOS ${versionOf("@dbos-inc/dbos-sdk")}`, open: onPostgres("dbos", dbos), sizes: [...one, [1, 1000], ...many], recovery: 200 },
  {
    name: "langgraph_delta", system: `LangGraph ${versionOf("@langchain/langgraph")}, delta channel`,
    open: onPostgres("langgraph_delta", (url) => langgraph("delta", url)), sizes: [...one, [16, 10], [64, 10]], recovery: 200,
  },
  {
    name: "langgraph", system: `LangGraph ${versionOf("@langchain/langgraph")}`,
    open: onPostgres("langgraph", (url) => langgraph("ordinary", url)), sizes: [...one, [16, 10], [64, 10]], recovery: 200,
  },
];

const quick = process.env.PEERS_QUICK !== undefined;
const wholeTurns = process.argv.includes("--turn");
const wanted = process.argv.slice(2).filter((name) => name !== "--turn");
const chosen = peers.filter((p) => wanted.length === 0 || wanted.includes(p.name));
const unknown = wanted.filter((name) => !peers.some((p) => p.name === name));
if (unknown.length > 0) throw new Error(`there is no ${unknown}; there are ${peers.map((p) => p.name)}`);

const runsOfTurns = (process.env.PEERS_RUNS ?? "1 16 64").trim().split(/\s+/).map(Number);

// sizesOf are the numbers of runs and their turns; of whole turns they are those of case turn.
function sizesOf(peer) {
  if (quick) return [[1, 3], [2, 2]];
  return wholeTurns ? runsOfTurns.map((runs) => [runs, Math.max(10, Math.min(200, Math.floor(1280 / runs)))]) : peer.sizes;
}

// by is what was stored meanwhile, by payload; undefined where one of the two was not told.
const by = (after, before, payload) => (after === undefined || before === undefined ? undefined : (after - before) / payload);

async function measure(peer, opened, runs, turns) {
  const ids = Array.from({ length: runs }, (_, i) => `run-${runs}-${turns}-${i}`);
  const says = ids.map((id) => turnsOf(id, turns));
  const before = await opened.stored();
  const clocks = await Promise.all(ids.map((id, i) => opened.play(id, says[i])));
  // From the first turn's begin to the last one's end, as case turn has it: beginning and ending the runs is no part of it.
  const seconds = (Math.max(...clocks.map((c) => c.ended)) - Math.min(...clocks.map((c) => c.began))) / 1000;
  const after = await opened.stored();
  const payload = runs * turns * turnPayload;
  const us = (times, q) => quantile(times, q) * 1000;
  const boundaries = clocks.flatMap((c) => c.boundaries);
  const whole = clocks.flatMap((c) => c.turns);
  const tenth = Math.max(3, Math.floor(boundaries.length / 10));
  const line = {
    waymark_bench_peer: 1, system: peer.system, store: opened.store, source: wholeTurns ? "make bench-turn" : "make bench-peers", runs, turns,
    per_second: boundaries.length / seconds, p50_us: us(boundaries, 0.5), p99_us: us(boundaries, 0.99),
    turns_per_second: whole.length / seconds, turn_p50_us: us(whole, 0.5), turn_p99_us: us(whole, 0.99),
    first_tenth_p50_us: runs === 1 ? us(boundaries.slice(0, tenth), 0.5) : undefined,
    last_tenth_p50_us: runs === 1 ? us(boundaries.slice(-tenth), 0.5) : undefined,
    stored_per_payload: by(after.wal, before.wal, payload), kept_per_payload: by(after.kept, before.kept, payload),
    device_per_payload: by(after.device, before.device, payload),
    machine: `${cpus().length} CPUs (${cpus()[0].model.trim()}), node ${process.versions.node}`, quick: quick || undefined,
  };
  if (!wholeTurns && runs === 1 && turns === (quick ? 3 : peer.recovery) && opened.recover) line.recovery_ms = await opened.recover(ids[0], says[0]);
  console.log(JSON.stringify(line));
}

let open; // the peer that is measured now
const stop = async () => {
  await open?.close();
  await postgres?.stop();
};
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, () => stop().finally(() => process.exit(1)));
}
try {
  for (const peer of chosen) {
    open = await peer.open();
    await open.play("warm-up", turnsOf("warm-up", quick ? 2 : 20));
    for (const [runs, turns] of sizesOf(peer)) await measure(peer, open, runs, turns);
    await open.close();
    open = undefined;
  }
} finally {
  await stop();
}
