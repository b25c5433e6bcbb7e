// A DBOS workflow on PostgreSQL. Each boundary is a step whose output is recorded before the next begins.

import { DBOS } from "@dbos-inc/dbos-sdk";
import { Clock, outputsOf, turnBoundaries } from "./workload.mjs";

// What runs say, and what workflows tell the measurement, by the workflow's id; a workflow that is recovered tells again.
const says = new Map();
const told = new Map();

async function agent(id, waits) {
  const clock = new Clock();
  const begun = performance.now();
  let bytes = 0;
  for (const turn of says.get(id)) {
    for (const [name, output] of outputsOf(turn)) {
      const recorded = await DBOS.runStep(async () => output, { name });
      clock.boundary();
      bytes += (recorded.text ?? recorded).length;
    }
  }
  told.get(id)?.({ clock, replayed: performance.now() - begun, bytes });
  if (waits) await DBOS.recv("end", 600);
  return bytes;
}

export async function dbos(connection) {
  DBOS.setConfig({ name: "peers", systemDatabaseUrl: connection, systemDatabasePoolSize: 64, logLevel: "error", runAdminServer: false });
  const workflow = DBOS.registerWorkflow(agent, { name: "agent" });
  await DBOS.launch();
  const report = (id) => new Promise((resolve) => told.set(id, resolve));
  return {
    async play(id, turns) {
      says.set(id, turns);
      const done = report(id);
      const handle = await DBOS.startWorkflow(workflow, { workflowID: id })(id, false);
      const { clock } = await done;
      await handle.getResult();
      return clock;
    },
    // A workflow that is in the middle is run again from its beginning by another launch: the time until it is where it was.
    async recover(id, turns) {
      says.set(`${id}-again`, turns);
      const before = report(`${id}-again`);
      await DBOS.startWorkflow(workflow, { workflowID: `${id}-again` })(`${id}-again`, true);
      const { bytes } = await before;
      await DBOS.shutdown({ workflowCompletionTimeoutMS: 1 });
      const after = report(`${id}-again`);
      await DBOS.launch();
      const again = await after;
      if (again.bytes !== bytes || again.clock.boundaries.length !== turns.length * turnBoundaries) throw new Error(`workflow ${id} came back different`);
      await DBOS.send(`${id}-again`, "end", "end");
      return again.replayed;
    },
    close: () => DBOS.shutdown(),
  };
}
