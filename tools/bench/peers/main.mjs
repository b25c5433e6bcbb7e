// Measures other systems with the workload of tools/bench and writes a line of JSON each, for "bench report".
// "main.mjs --turn" is the short measurement of whole turns. "make bench-turn" alternates it with case turn.

import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { cpus } from "node:os";
import { langgraph } from "./langgraph.mjs";
import { startPostgres } from "./postgres.mjs";
import { restate } from "./restate.mjs";
import { cpuOf, goAgent } from "./servers.mjs";
import { temporal, temporalVersion } from "./temporal.mjs";
import { quantile, turnBoundaries, turnPayload, turnsOf } from "./workload.mjs";

const versionOf = (name) => createRequire(import.meta.url)(`./node_modules/${name}/package.json`).version;

// goVersionOf is the version of a Go client, as the toolchain stamped it into the program.
const goVersionOf = (module) =>
  new RegExp(`\\t${module}\\tv([\\d.]+)`).exec(execFileSync("go", ["version", "-m", process.env.PEERS_GO], { encoding: "utf8" }))[1];

// onPostgres opens a peer on a database of its own, of a server that all of them share.
let postgres;
const onPostgres = (name, open) => async () => {
  postgres ??= await startPostgres();
  const peer = await open(await postgres.create(name));
  return { ...peer, pid: postgres.pid, store: `PostgreSQL ${postgres.version}`, stored: () => postgres.stored(name) };
};

// Several runs at once are short: their rate is what is looked for. 1,000 turns in an ordinary channel would take gigabytes, and with a
// delta channel many minutes: each turn loads what came before.
const one = [[1, 10], [1, 50], [1, 200]];
const many = [[16, 40], [64, 20]];
const restateServer = versionOf("@restatedev/restate-server");
const peers = [
  {
    name: "restate", client: "JavaScript", system: () => `Restate ${restateServer}, JavaScript`,
    open: async () => ({ ...(await restate("JavaScript")), store: "its own" }), sizes: [...one, [1, 1000], ...many, [256, 10]],
  },
  {
    name: "restate_go", client: "Go", system: () => `Restate ${restateServer}, Go ${goVersionOf("github.com/restatedev/sdk-go")}`,
    open: async () => ({ ...(await restate("Go")), store: "its own" }), sizes: [...one, [1, 1000], ...many, [256, 10]],
  },
  {
    name: "dbos", client: "Go", system: () => `DBOS, Go ${goVersionOf("github.com/dbos-inc/dbos-transact-golang")}`,
    open: onPostgres("dbos", (url) => goAgent("dbos", `${url}?pool_max_conns=64`)), sizes: [...one, [1, 1000], ...many],
  },
  {
    name: "temporal", client: "Go", system: () => `Temporal ${temporalVersion()}, Go ${goVersionOf("go.temporal.io/sdk")}`,
    open: async () => ({ ...(await temporal()), store: "SQLite" }), sizes: [...one, ...many],
  },
  {
    name: "langgraph_delta", client: "JavaScript", system: () => `LangGraph ${versionOf("@langchain/langgraph")}, delta channel`,
    open: onPostgres("langgraph_delta", (url) => langgraph("delta", url)), sizes: [...one, [16, 10], [64, 10]],
  },
  {
    name: "langgraph", client: "JavaScript", system: () => `LangGraph ${versionOf("@langchain/langgraph")}`,
    open: onPostgres("langgraph", (url) => langgraph("ordinary", url)), sizes: [...one, [16, 10], [64, 10]],
  },
];

const quick = process.env.PEERS_QUICK !== undefined;
const wholeTurns = process.argv.includes("--turn");
const wanted = process.argv.slice(2).filter((name) => name !== "--turn");
// Temporal's server takes minutes to build, so it is measured where it is asked for.
const chosen = peers.filter((p) => (wanted.length === 0 ? p.name !== "temporal" : wanted.includes(p.name)));
const unknown = wanted.filter((name) => !peers.some((p) => p.name === name));
if (unknown.length > 0) throw new Error(`there is no ${unknown}; there are ${peers.map((p) => p.name)}`);

const runsOfTurns = (process.env.PEERS_RUNS ?? "1 16 64").trim().split(/\s+/).map(Number);

// sizesOf are the numbers of runs and their turns; of whole turns they are those of case turn.
function sizesOf(peer) {
  if (quick) return [[1, 3], [2, 2]];
  return wholeTurns ? runsOfTurns.map((runs) => [runs, Math.max(10, Math.min(200, Math.floor(1280 / runs)))]) : peer.sizes;
}

// by is what was used meanwhile, by payload or turn; undefined where one of the two was not told.
const by = (after, before, payload) => (after === undefined || before === undefined ? undefined : (after - before) / payload);

// clientCPU is the processor time of the client in us: a client in JavaScript is this process.
const clientCPU = (opened) => {
  const { user, system } = process.cpuUsage();
  return opened.clientCPU?.() ?? user + system;
};

const playAll = (opened, ids, says) => opened.playAll?.(ids, says) ?? Promise.all(ids.map((id, i) => opened.play(id, says[i])));

async function measure(peer, opened, runs, turns) {
  const ids = Array.from({ length: runs }, (_, i) => `run-${runs}-${turns}-${i}`);
  const says = ids.map((id) => turnsOf(id, turns));
  const before = { ...(await opened.stored?.()), client: clientCPU(opened), server: cpuOf(opened.pid) };
  const clocks = await playAll(opened, ids, says);
  // From the first turn's begin to the last one's end, as case turn has it: beginning and ending the runs is no part of it.
  const seconds = (Math.max(...clocks.map((c) => c.ended)) - Math.min(...clocks.map((c) => c.began))) / 1000;
  const after = { client: clientCPU(opened), server: cpuOf(opened.pid), ...(await opened.stored?.()) };
  const payload = runs * turns * turnPayload;
  const us = (times, q) => quantile(times, q) * 1000;
  const boundaries = clocks.flatMap((c) => c.boundaries);
  const whole = clocks.flatMap((c) => c.turns);
  if (whole.length !== runs * turns || boundaries.length !== runs * turns * turnBoundaries) {
    throw new Error(`${peer.name}: ${whole.length} turns and ${boundaries.length} boundaries of ${runs} runs with ${turns} turns`);
  }
  const tenth = Math.max(3, Math.floor(boundaries.length / 10));
  const line = {
    waymark_bench_peer: 1, system: peer.system(), store: opened.store, client: peer.client, runs, turns,
    per_second: boundaries.length / seconds, p50_us: us(boundaries, 0.5), p99_us: us(boundaries, 0.99),
    turns_per_second: whole.length / seconds, turn_p50_us: us(whole, 0.5), turn_p99_us: us(whole, 0.99),
    first_tenth_p50_us: runs === 1 ? us(boundaries.slice(0, tenth), 0.5) : undefined,
    last_tenth_p50_us: runs === 1 ? us(boundaries.slice(-tenth), 0.5) : undefined,
    client_cpu_us: (after.client - before.client) / whole.length, server_cpu_us: by(after.server, before.server, whole.length),
    stored_per_payload: by(after.wal, before.wal, payload), kept_per_payload: by(after.kept, before.kept, payload),
    machine: `${cpus().length} CPUs (${cpus()[0].model.trim()}), node ${process.versions.node}`, quick: quick || undefined,
  };
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
    console.error("measuring", peer.system());
    open = await peer.open();
    await playAll(open, ["warm-up"], [turnsOf("warm-up", quick ? 2 : 20)]);
    for (const [runs, turns] of sizesOf(peer)) await measure(peer, open, runs, turns);
    await open.close();
    open = undefined;
  }
} finally {
  await stop();
}
