// SPDX-License-Identifier: Apache-2.0
// A small line of the last minute of one figure.

import { svg } from "./dom.js";

const LENGTH = 60;
const WIDTH = 120;
const HEIGHT = 28;

export function spark() {
  const line = svg("polyline", { class: "spark-line" });
  const area = svg("polygon", { class: "spark-area" });
  const element = svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    area,
    line,
  );
  const values = [];
  return {
    element,
    add(value) {
      values.push(value);
      if (values.length > LENGTH) values.shift();
      const most = Math.max(...values, 1e-9);
      const first = LENGTH - values.length;
      const place = (index) => ((first + index) * WIDTH) / (LENGTH - 1);
      const height = (one) => HEIGHT - 2 - (one / most) * (HEIGHT - 5);
      const points = values.map((one, index) => `${place(index).toFixed(1)},${height(one).toFixed(1)}`);
      line.setAttribute("points", points.join(" "));
      area.setAttribute("points", `${place(0).toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
    },
  };
}
