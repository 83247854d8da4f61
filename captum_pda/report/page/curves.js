// The two curves of a map's test: the prediction with the strongest pixels hidden, and shown alone.

const CURVES = { width: 340, height: 210, left: 46, right: 20, top: 12, bottom: 38 };

function testCurves(test, step, probable) {
  const { width, height, left, right, top, bottom } = CURVES;
  const all = [...test.hidden, ...test.shown];
  const [low, high] = probable ? [0, 1] : [Math.min(...all), Math.max(...all)];
  const x = (share) => left + share * (width - left - right);
  const y = (value) => top + (1 - (value - low) / (high - low || 1)) * (height - top - bottom);
  const line = (values) => values.map((value, k) => `${x(test.shares[k])},${y(value)}`).join(" ");
  const text = (words, at, anchor = "middle") => drawn("text", { ...at, "text-anchor": anchor }, words);
  const marks = [low, (low + high) / 2, high].map((value) =>
    text(probable ? `${100 * value}%` : general(value, 3), { x: left - 6, y: y(value) + (value === low ? 0 : 4) }, "end"),
  );
  const there = x(test.shares[step]);
  return [
    drawn("polygon", { class: "between", points: `${line(test.shown)} ${line(test.hidden).split(" ").reverse().join(" ")}` }),
    drawn("path", { class: "axes", d: `M${left},${top} V${height - bottom} H${width - right}` }),
    drawn("line", { class: "there", x1: there, x2: there, y1: top, y2: height - bottom }),
    drawn("polyline", { class: "shown", points: line(test.shown) }),
    drawn("polyline", { class: "hidden", points: line(test.hidden) }),
    drawn("circle", { class: "shown", cx: there, cy: y(test.shown[step]), r: 4 }),
    drawn("circle", { class: "hidden", cx: there, cy: y(test.hidden[step]), r: 4 }),
    ...marks,
    ...[0, 0.5, 1].map((share) => text(`${100 * share}%`, { x: x(share), y: height - bottom + 17 })),
    text("share of the input, strongest first", { x: x(0.5), y: height - 4 }),
  ];
}

function drawn(tag, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}
