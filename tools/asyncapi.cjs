// Validates one AsyncAPI document: node asyncapi.cjs <directory with node_modules> <document>.
const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");

const [directory, file] = process.argv.slice(2);
const load = createRequire(path.resolve(directory, "package.json"));
const { Parser } = load("@asyncapi/parser");

new Parser().parse(fs.readFileSync(file, "utf8"), { source: file }).then(({ document, diagnostics }) => {
  const problems = diagnostics.filter((d) => d.severity <= 1); // errors and warnings
  for (const d of problems) {
    const where = `${file}:${d.range.start.line + 1}`;
    console.error(`${where}: ${d.severity === 0 ? "error" : "warning"}: ${d.message} (${d.path.join("/")})`);
  }
  if (!document || problems.some((d) => d.severity === 0)) {
    process.exitCode = 1;
    return;
  }
  console.log(`${file}: valid AsyncAPI ${document.version()}, ${document.channels().length} channels, ${document.operations().length} operations`);
});
