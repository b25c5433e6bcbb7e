// A Temporal development server on a temporary SQLite file, with a worker in Go. A run is a workflow, a boundary an activity.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "node:net";
import { freePort, goAgent, stopServer, until } from "./servers.mjs";

// temporalVersion is the version of the server within the command.
export const temporalVersion = () => /\(Server ([\d.]+)/.exec(execFileSync(process.env.PEERS_TEMPORAL, ["--version"], { encoding: "utf8" }))[1];

export async function temporal() {
  const dir = mkdtempSync(join(process.env.PEERS_STORE ?? tmpdir(), "waymark-peers-"));
  const [port, http, metrics] = await Promise.all([freePort(), freePort(), freePort()]);
  const server = spawn(process.env.PEERS_TEMPORAL, [
    "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", `${port}`, "--http-port", `${http}`, "--metrics-port", `${metrics}`,
    "--db-filename", join(dir, "temporal.db"), "--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2", "--log-level", "error",
  ], { cwd: dir, stdio: ["ignore", process.env.PEERS_LOG ? 2 : "ignore", process.env.PEERS_LOG ? "inherit" : "ignore"] });
  let agent;
  const close = async () => {
    await agent?.close();
    await stopServer(server);
    rmSync(dir, { recursive: true, force: true });
  };
  try {
    await until("its port", server, () => new Promise((resolve, reject) => connect(port, "127.0.0.1", () => resolve(true)).once("error", reject)));
    agent = await goAgent("temporal", `127.0.0.1:${port}`);
  } catch (err) {
    await close();
    throw err;
  }
  return { ...agent, pid: server.pid, close };
}
