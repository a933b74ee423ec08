// SPDX-License-Identifier: Apache-2.0
// Numbers for people. A missing one is a dash.

export const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? value.toLocaleString("en") : NONE;
}

export function rate(value) {
  if (!known(value)) return NONE;
  return value >= 100 || value === 0 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

export function share(value) {
  if (!known(value)) return NONE;
  const percent = value * 100;
  return `${percent > 0 && percent < 1 ? "<1" : Math.round(percent)} %`;
}

export function bytes(value) {
  if (!known(value)) return NONE;
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    const shown = size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size);
    if (size < 1000 || unit === "GB") return `${shown} ${unit}`;
    size /= 1000;
  }
  return NONE;
}

// A short time, in the unit that suits it.
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value < 0.001) return value <= 0 ? "0 ms" : `${Math.max(1, Math.round(value * 1e6))} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : duration(value);
}

// A long time, in its two largest units.
export function duration(value) {
  if (!known(value)) return NONE;
  const whole = Math.floor(value);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString("en-GB");
}

export function words(state) {
  return String(state).toLowerCase().replaceAll("_", " ");
}

export function plural(number, one, many) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
