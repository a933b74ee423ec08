// SPDX-License-Identifier: Apache-2.0
// A recording in place of the server: its snapshots over time, with a slider. scripts/simulate.py writes recordings:
// {title, moments: [{at, text, tone}], frames: [{at, snapshots: {PROXY: SNAPSHOT}}], timelines: {ID: TIMELINE}}.

import { byId, keep, make, mark, say, show } from "./dom.js";
import { plural } from "./format.js";

// What stands before a recording in the page that has it.
const BEGIN = '<script type="application/json" id="recorded">';
// Moments that are listed, the last ones before the time that is shown.
const LISTED = 8;
// Milliseconds of this world for each frame that is played.
const BEAT = 125;

const slider = byId("recording-time");
const play = byId("recording-play");
const proxies = byId("recording-proxy");
let recording = null;
let showFrame = () => {};
let timer = null;

export const isRecorded = () => recording !== null;

// The timeline of a request as far as it was recorded.
export function recordedTimeline(id) {
  return recording.timelines[id] ?? null;
}

// Return the recording in the text of a file: that is a page with it.
export function readRecording(text) {
  const begin = text.indexOf(BEGIN) + BEGIN.length;
  return JSON.parse(text.slice(begin, text.indexOf("</script>", begin)));
}

// Show a recording from its beginning; `onSnapshot` is called with the snapshot of the time that the slider has.
// `hasServer` is whether there is something to go back to. Throws TypeError for what is no recording.
export function openRecording(told, onSnapshot, hasServer = true) {
  recording = checked(told);
  show(byId("recording-close"), hasServer);
  showFrame = onSnapshot;
  stop();
  slider.max = recording.frames.length - 1;
  slider.value = 0;
  const names = [...new Set(recording.frames.flatMap((frame) => Object.keys(frame.snapshots)))].sort();
  proxies.replaceChildren(...names.map((name) => make("option", { text: name, value: name })));
  show(proxies.parentElement, names.length > 1);
  say(byId("recording-title"), recording.title);
  const last = recording.frames.at(-1).at;
  byId("recording-marks").replaceChildren(...recording.moments.map((moment) => markOf(moment, last)));
  show(byId("recording"), true);
  mark(document.body, "data-recorded", "yes");
  showNow();
}

function checked(told) {
  const isWhole = Array.isArray(told?.frames) && told.frames.length > 0 && Array.isArray(told.moments);
  if (!isWhole || typeof told.timelines !== "object") throw new TypeError("no recording");
  return told;
}

function markOf({ at, text, tone }, last) {
  const made = make("span", { class: "moment", "data-tone": tone, title: `${at.toFixed(2)} s: ${text}` });
  made.style.left = `${last > 0 ? Math.min(100, (at / last) * 100) : 0}%`;
  return made;
}

function showNow() {
  const frame = recording.frames[Number(slider.value)];
  const before = recording.moments.filter((moment) => moment.at <= frame.at);
  const time = `${frame.at.toFixed(2)} s`;
  say(byId("recording-at"), time);
  mark(slider, "aria-valuetext", `${time}, ${plural(before.length, "event", "events")} so far`);
  keep(byId("recording-moments"), before.slice(-LISTED).reverse(), keyOf, createMoment, () => {});
  const snapshot = frame.snapshots[proxies.value] ?? Object.values(frame.snapshots)[0];
  show(byId("recording-none"), !snapshot);
  if (snapshot) showFrame(snapshot);
}

const keyOf = (moment) => recording.moments.indexOf(moment);

function createMoment({ at, text, tone }) {
  const when = make("span", { class: "when", text: `${at.toFixed(2)} s` });
  return make("li", { "data-tone": tone }, when, make("span", { class: "told", text }));
}

function stop() {
  clearInterval(timer);
  timer = null;
  say(play, "Play");
}

function step() {
  if (Number(slider.value) >= Number(slider.max)) stop();
  else {
    slider.value = Number(slider.value) + 1;
    showNow();
  }
}

play.addEventListener("click", () => {
  if (timer !== null) {
    stop();
    return;
  }
  if (slider.value === slider.max) slider.value = 0;
  say(play, "Pause");
  timer = setInterval(step, BEAT);
});
slider.addEventListener("input", () => {
  stop();
  showNow();
});
proxies.addEventListener("change", showNow);
byId("recording-close").addEventListener("click", () => location.reload());
