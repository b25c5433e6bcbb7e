// A host of the Synadia Agent Protocol on the NATS client alone, as somebody writes it who read the protocol: the
// prompt subject and the heartbeats. It stands in for npm @synadia-ai/agent-service where that package cannot be had.
import { nuid } from "@nats-io/transport-node";

export class AgentService {
  #options;
  #id = nuid.next();
  #handler = () => {};

  constructor(options) {
    this.#options = options;
    const place = `${options.agent}.${options.owner}.${options.name}`;
    this.subject = { prompt: `agents.prompt.${place}`, heartbeat: `agents.hb.${place}` };
  }

  get instanceId() {
    return this.#id;
  }

  onPrompt(handler) {
    this.#handler = handler;
  }

  async start() {
    const { nc, agent, owner, heartbeatIntervalS } = this.#options;
    nc.subscribe(this.subject.prompt, {
      queue: "agents",
      callback: async (err, msg) => {
        if (err) return;
        msg.respond(JSON.stringify({ type: "status", data: "ack" }));
        const send = (text) => msg.respond(JSON.stringify({ type: "response", data: text }));
        await this.#handler({ prompt: msg.string() }, { send });
        msg.respond("");
      },
    });
    const beat = () =>
      nc.publish(
        this.subject.heartbeat,
        JSON.stringify({ agent, owner, instance_id: this.#id, ts: new Date().toISOString(), interval_s: heartbeatIntervalS }),
      );
    beat();
    setInterval(beat, heartbeatIntervalS * 1000);
    await nc.flush();
  }
}
