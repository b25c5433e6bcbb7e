// What the peers' servers and clients have in common: ports, processor time, and the clients in Go.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { createInterface } from "node:readline";
import { outputsOf } from "./workload.mjs";

// freePort finds a port of loopback that no server listens at. Another process may take it before it is used: the start then fails.
export const freePort = () =>
  new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

// until waits until something holds, while a server runs.
export async function until(what, server, holds) {
  let last;
  for (let tries = 0; tries < 600; tries++) {
    if (server.exitCode !== null) throw new Error(`the server ended with ${server.exitCode} before ${what}; PEERS_LOG=1 shows why`);
    try {
      if (await holds()) return;
    } catch (err) {
      last = err; // as a rule it does not listen yet
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited a minute for ${what}`, { cause: last });
}

// stopServer ends a server cleanly.
export async function stopServer(server) {
  if (server.exitCode !== null) return;
  const ended = once(server, "exit");
  server.kill("SIGTERM");
  const late = setTimeout(() => server.kill("SIGKILL"), 30_000);
  await ended;
  clearTimeout(late);
}

const tick = 10_000; // us: the kernel tells processor time in hundredths of a second

// cpuOf is the processor time in us of a process and of its children, ended ones included; undefined where the system does not tell.
export function cpuOf(pid) {
  try {
    let ticks = 0;
    for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      try {
        const fields = readFileSync(`/proc/${entry}/stat`, "utf8").split(") ")[1].split(" ").map(Number);
        if (Number(entry) === pid) ticks += fields[11] + fields[12] + fields[13] + fields[14];
        else if (fields[1] === pid) ticks += fields[11] + fields[12];
      } catch {
        // it ended meanwhile
      }
    }
    return ticks * tick;
  } catch {
    return undefined;
  }
}

// goAgent starts the client in Go of a system. It plays all runs at once, and says how much processor time that took it.
export async function goAgent(...args) {
  const child = spawn(process.env.PEERS_GO, args, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const answer = async () => {
    const { value, done } = await lines.next();
    if (done) throw new Error(`the Go client of ${args[0]} ended`);
    return JSON.parse(value);
  };
  await answer();
  const said = (output) => (typeof output === "string" ? { text: output } : output);
  let cpu = 0;
  return {
    async playAll(ids, says) {
      const runs = ids.map((id, i) => ({ id, turns: says[i].map((turn) => outputsOf(turn).map(([, output]) => said(output))) }));
      child.stdin.write(JSON.stringify(runs) + "\n");
      const { clocks, cpu_us } = await answer();
      cpu += cpu_us;
      return clocks;
    },
    clientCPU: () => cpu,
    async close() {
      const ended = once(child, "exit");
      child.stdin.end();
      await ended;
    },
  };
}
