// A DBOS workflow on PostgreSQL. Each boundary is a step whose output is recorded before the next begins.

import { DBOS } from "@dbos-inc/dbos-sdk";
import { sizes, textOf, turnBoundaries } from "./workload.mjs";

// What workflows tell the measurement, by their id; a workflow that is recovered tells anew.
const told = new Map();

async function agent(id, turns, waits) {
  const text = textOf(turns + id.length);
  const times = [];
  const begun = performance.now();
  let bytes = 0;
  let making = 0; // the texts are the workload's, not the system's
  for (let turn = 0; turn < turns; turn++) {
    for (const [name, size] of Object.entries(sizes)) {
      const made = performance.now();
      const output = text(size);
      const began = performance.now();
      making += began - made;
      bytes += (await DBOS.runStep(async () => output, { name })).length;
      times.push(performance.now() - began);
    }
  }
  told.get(id)?.({ times, replayed: performance.now() - begun - making, bytes });
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
      const done = report(id);
      const handle = await DBOS.startWorkflow(workflow, { workflowID: id })(id, turns, false);
      const { times } = await done;
      await handle.getResult();
      return times;
    },
    // A workflow that is in the middle is run again from its beginning by another launch: the time until it is where it was.
    async recover(id, turns) {
      const before = report(`${id}-again`);
      await DBOS.startWorkflow(workflow, { workflowID: `${id}-again` })(`${id}-again`, turns, true);
      const { bytes } = await before;
      await DBOS.shutdown({ workflowCompletionTimeoutMS: 1 });
      const after = report(`${id}-again`);
      await DBOS.launch();
      const again = await after;
      if (again.bytes !== bytes || again.times.length !== turns * turnBoundaries) throw new Error(`workflow ${id} came back different`);
      await DBOS.send(`${id}-again`, "end", "end");
      return again.replayed;
    },
    close: () => DBOS.shutdown(),
  };
}
