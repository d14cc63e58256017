// node build.mjs FOLDER          builds the page; dist/ is what is committed
// node build.mjs --tests FOLDER  builds the tests of its parts
import { cp, readdir } from "node:fs/promises";
import { build } from "esbuild";

const folder = process.argv.at(-1);
const shared = { bundle: true, target: "es2023", charset: "utf8", legalComments: "none", logLevel: "warning" };

if (process.argv.includes("--tests")) {
  const tests = (await readdir("test")).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...shared,
    entryPoints: tests.map((name) => `test/${name}`),
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
  });
} else {
  await build({ ...shared, entryPoints: ["src/page.ts"], outfile: `${folder}/page.js`, format: "iife", minify: true });
  await build({ ...shared, entryPoints: ["src/page.css"], outfile: `${folder}/page.css`, minify: true });
  for (const name of ["index.html", "icon.svg"]) await cp(`src/${name}`, `${folder}/${name}`);
}
