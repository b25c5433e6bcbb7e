// A PostgreSQL server on a temporary directory, with the settings it comes with: fsync and synchronous commit are on.

import { execFileSync, spawn } from "node:child_process";
import { chownSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { freePort } from "./servers.mjs";

// PostgreSQL refuses to run as root: then it runs as the user that its package has made.
function user() {
  if (process.getuid() !== 0) return {};
  const id = (flag) => Number(execFileSync("id", [flag, "postgres"], { encoding: "utf8" }));
  return { uid: id("-u"), gid: id("-g") };
}

// startPostgres returns the server: url(database), query(sql), version, stop().
export async function startPostgres() {
  const as = user();
  const dir = mkdtempSync(join(process.env.PEERS_STORE ?? tmpdir(), "waymark-peers-"));
  if (as.uid !== undefined) chownSync(dir, as.uid, as.gid);
  const data = join(dir, "data");
  try {
    execFileSync("initdb", ["-D", data, "-U", "peers", "-A", "trust", "-E", "UTF8", "--no-locale"], { ...as, cwd: dir, stdio: ["ignore", "ignore", "inherit"] });
  } catch (err) {
    rmSync(dir, { recursive: true, force: true });
    if (err.code !== "ENOENT") throw err;
    throw new Error("NOT measured: DBOS and LangGraph need PostgreSQL, and initdb is not on the path. Without it: PEERS=restate", { cause: err });
  }
  const port = await freePort();
  const server = spawn("postgres", ["-D", data, "-p", String(port), "-c", "listen_addresses=127.0.0.1", "-k", dir, "-c", "max_connections=200"],
    { ...as, cwd: dir, stdio: ["ignore", "ignore", process.env.PEERS_LOG ? "inherit" : "ignore"] });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  const url = (database) => `postgresql://peers@127.0.0.1:${port}/${database}`;
  let pool;
  for (let tries = 0; ; tries++) {
    pool = new pg.Pool({ connectionString: url("postgres"), max: 2 });
    pool.on("error", () => {}); // a connection that ends while idle: the next query says what is wrong
    try {
      await pool.query("SELECT 1");
      break;
    } catch (err) {
      await pool.end();
      if (tries > 300 || server.exitCode !== null) throw err;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  const query = async (sql, values) => (await pool.query(sql, values)).rows[0];
  const version = (await query("SHOW server_version")).server_version.split(" ")[0];
  const durable = (await query("SELECT current_setting('fsync') || '/' || current_setting('synchronous_commit') AS s")).s;
  if (durable !== "on/on") throw new Error(`PostgreSQL is not durable: fsync/synchronous_commit are ${durable}`);
  return {
    url, query, version, pid: server.pid,
    async create(database) {
      await pool.query(`CREATE DATABASE ${database}`);
      return url(database);
    },
    // stored tells the bytes that were ever written to the log, and those that a database takes now.
    async stored(database) {
      const row = await query("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal, pg_database_size($1) AS kept", [database]);
      return { wal: Number(row.wal), kept: Number(row.kept) };
    },
    async stop() {
      await pool.end();
      server.kill("SIGINT");
      await ended;
      rmSync(dir, { recursive: true, force: true });
    },
  };
}
