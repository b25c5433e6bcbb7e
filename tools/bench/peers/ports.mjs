// freePort finds a port of loopback that no server listens at. Another process may take it before it is used: the start then fails.

import { createServer } from "node:net";

export const freePort = () =>
  new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
