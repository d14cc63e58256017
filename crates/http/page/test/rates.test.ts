import assert from "node:assert/strict";
import { test } from "node:test";
import { blocks, bytes, count, deviceName, duration, list, pause } from "../src/format.js";
import { Series } from "../src/rates.js";

test("rates are of the last seconds, by the server's clock", () => {
  const series = new Series();
  for (let at = 0; at <= 10; at += 1) series.push(at, at < 5 ? 0 : (at - 5) * 30);
  assert.equal(series.now(), 30);
  assert.equal(series.steps().at(-1)?.rate, 30);
  series.push(11, 150);
  series.push(12, 150);
  series.push(13, 150);
  assert.equal(series.now(), 0);
});

test("where one looks seldom, rates are between the last two looks", () => {
  const series = new Series();
  for (let at = 0; at <= 20; at += 5) series.push(at, at * 4);
  assert.equal(series.now(), 4);
});

test("a server that was started anew counts anew", () => {
  const series = new Series();
  series.push(100, 5000);
  series.push(1, 10);
  assert.equal(series.now(), 0);
  series.push(2, 20);
  assert.equal(series.now(), 10);
});

test("numbers for people", () => {
  assert.deepEqual([bytes(0), bytes(1023), bytes(1536), bytes(94 << 20)], ["0 B", "1023 B", "1.5 KiB", "94.0 MiB"]);
  assert.deepEqual([count(999), count(134_515_008), count(8e9)], ["999", "134.5 M", "8.0 B"]);
  assert.deepEqual([duration(59), duration(3700), duration(90000)], ["59 s", "1 h 1 min", "1 d 1 h"]);
  assert.deepEqual([blocks([0, 0]), blocks([3, 4]), blocks([0, 15])], ["", "block 3", "blocks 0–14"]);
  const devices = ["CPU", "RPC0[box:50052]", "RPC1[[::1]:50052]"].map(deviceName);
  assert.deepEqual(devices, ["CPU", "device 0", "device 1"]);
  assert.deepEqual([pause(7), pause(999), pause(1250), pause(61_000)], ["7 ms", "999 ms", "1.3 s", "61 s"]);
  assert.deepEqual([list([]), list(["a"]), list(["a", "b"]), list(["a", "b", "c"])], ["", "a", "a and b", "a, b and c"]);
});
