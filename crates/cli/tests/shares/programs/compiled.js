// Waits for a line on stdin. Then it works for the processor time that the first argument says, in seconds: 10, 20, 30 and 40 % of it in the functions of these names, once they are
// compiled. See plain.c.
'use strict';

let sink = 1;

function ten(scale) {
  let x = sink;
  for (let i = 0; i < 1000 * scale; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  sink = x;
}

function twenty(scale) {
  let x = sink;
  for (let i = 0; i < 2000 * scale; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  sink = x;
}

function thirty(scale) {
  let x = sink;
  for (let i = 0; i < 3000 * scale; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  sink = x;
}

function forty(scale) {
  let x = sink;
  for (let i = 0; i < 4000 * scale; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  sink = x;
}

require('fs').readSync(0, Buffer.alloc(1));
const end = Number(process.argv[2] || 1) * 1e6;
let random = 1;
for (;;) {
  const { user, system } = process.cpuUsage();
  if (user + system >= end) break;
  random = (Math.imul(random, 1664525) + 1013904223) | 0;
  const scale = 1 + (random >>> 28);
  ten(scale);
  twenty(scale);
  thirty(scale);
  forty(scale);
}
