// SPDX-License-Identifier: Apache-2.0
// Movement along the busy wires in a few steps a second. A browser repaints an animation of dashes by CSS sixty times a
// second, for as long as there is load: a fifth of a core of the machine that the page is open on.

const EVERY = 250;
// Pixels of one step; the dashes repeat after STEPS of them.
const STEP = 4.5;
const STEPS = 4;
const still = matchMedia("(prefers-reduced-motion: reduce)");

let timer = null;
let place = 0;

// Let the dashes of `wires` move while `busy`.
export function move(wires, busy) {
  if (busy === (timer !== null)) return;
  if (busy) {
    timer = setInterval(() => step(wires), EVERY);
  } else {
    clearInterval(timer);
    timer = null;
  }
}

function step(wires) {
  if (still.matches || document.hidden) return;
  place = (place + 1) % STEPS;
  wires.setAttribute("stroke-dashoffset", -STEP * place);
}
