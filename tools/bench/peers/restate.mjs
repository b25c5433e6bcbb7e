// A Restate service, in JavaScript or in Go. Each boundary is a ctx.run, whose result the server has made durable before the next begins.
// The server runs on a temporary directory with the settings it comes with, on loopback; only its reports of use to its makers are off.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:http2";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort, goAgent, stopServer, until } from "./servers.mjs";
import { Clock, outputsOf } from "./workload.mjs";

// The SDK is written for Node.js 22.
Promise.withResolvers ??= function () {
  let settle;
  const promise = new this((resolve, reject) => (settle = { resolve, reject }));
  return { promise, ...settle };
};
const sdk = await import("@restatedev/restate-sdk");

const require = createRequire(import.meta.url);

// binary of the server: npm installs the package of this platform, if there is one.
function binary() {
  const name = `@restatedev/restate-server-${process.platform}-${process.arch}`;
  try {
    return require.resolve(`${name}/bin/restate-server`);
  } catch {
    throw new Error(`Restate is NOT measured: npm did not install ${name}, the server's binary for this platform`);
  }
}

// refuseWithoutSync throws where the server's log is not written through to the disk.
function refuseWithoutSync(env) {
  const [, log] = execFileSync(binary(), ["--dump-config"], { env, encoding: "utf8" }).split("\n[log-server]\n");
  const set = (name) => new RegExp(`^${name} = (\\w+)$`, "m").exec(log?.split("\n[")[0])?.[1];
  const fsyncOff = set("rocksdb-disable-wal-fsync");
  if (fsyncOff !== "false" || set("rocksdb-disable-wal") === "true") {
    throw new Error(`Restate is NOT measured: its log server is not durable, or does not tell: rocksdb-disable-wal-fsync is ${fsyncOff}`);
  }
}

// javaScriptAgent serves the handler in this process.
async function javaScriptAgent(port, ingress) {
  const told = new Map(); // what a run is to say, and whom it tells when it is done
  const agent = sdk.service({
    name: "agent",
    handlers: {
      async play(ctx, id) {
        const { turns, done, fail } = told.get(id);
        try {
          if (told.get(id).begun) throw new Error(`run ${id} was begun again: its times would be those of a replay`);
          told.get(id).begun = true;
          const clock = new Clock();
          for (const turn of turns) {
            for (const [name, output] of outputsOf(turn)) {
              await ctx.run(name, () => output);
              clock.boundary();
            }
          }
          done(clock);
        } catch (err) {
          fail(err);
          throw err;
        }
      },
    },
  });
  const quiet = () => {};
  const endpoint = createServer(sdk.endpoint().bind(agent).setLogger(process.env.PEERS_LOG ? console.error : quiet).http2Handler());
  const sessions = new Set();
  endpoint.on("session", (session) => {
    sessions.add(session);
    session.once("close", () => sessions.delete(session));
  });
  await new Promise((resolve, reject) => endpoint.once("error", reject).listen(port, "127.0.0.1", resolve));
  return {
    async play(id, turns) {
      const clock = new Promise((done, fail) => told.set(id, { turns, done, fail }));
      await Promise.all([clock, post(`http://127.0.0.1:${ingress}/agent/play`, id)]);
      told.delete(id);
      return clock;
    },
    async close() {
      for (const session of sessions) session.destroy();
      await new Promise((resolve) => endpoint.close(resolve));
    },
  };
}

async function post(url, body) {
  const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`);
}

// restate opens the peer with its client in Go, or in JavaScript.
export async function restate(client) {
  const [service, ingress, admin, node] = await Promise.all([freePort(), freePort(), freePort(), freePort()]);
  const env = {
    PATH: process.env.PATH, RESTATE_DISABLE_TELEMETRY: "true", RESTATE_BIND_IP: "127.0.0.1", RESTATE_ADVERTISED_HOST: "127.0.0.1",
    RESTATE_BIND_PORT: String(node), RESTATE_INGRESS__BIND_PORT: String(ingress), RESTATE_ADMIN__BIND_PORT: String(admin),
  };
  refuseWithoutSync(env);
  const dir = mkdtempSync(join(process.env.PEERS_STORE ?? tmpdir(), "waymark-peers-"));
  const server = spawn(binary(), ["--no-logo", "--listen-mode", "tcp", "--base-dir", join(dir, "data"), "--node-name", "peers"], {
    cwd: dir, stdio: ["ignore", process.env.PEERS_LOG ? 2 : "ignore", process.env.PEERS_LOG ? "inherit" : "ignore"],
    env,
  });
  let agent;
  const close = async () => {
    await stopServer(server);
    await agent?.close();
    rmSync(dir, { recursive: true, force: true });
  };
  try {
    agent = client === "Go" ? await goAgent("restate", `127.0.0.1:${service}`, `127.0.0.1:${ingress}`) : await javaScriptAgent(service, ingress);
    await until("its admin port", server, async () => (await fetch(`http://127.0.0.1:${admin}/health`)).ok);
    await until("its ingress", server, async () => (await fetch(`http://127.0.0.1:${ingress}/restate/health`)).ok);
    await until("the registration", server, async () => {
      await post(`http://127.0.0.1:${admin}/deployments`, { uri: `http://127.0.0.1:${service}` });
      return true;
    });
  } catch (err) {
    await close();
    throw err;
  }
  return { ...agent, pid: server.pid, close };
}
