// The table of operators. A click on a row shows its shapes, lines and modules.

function operatorColumns(extra) {
  const of = (term) => meaning("operators", term);
  return [
    { key: "name", label: "Operator", kind: "name" },
    ...extra,
    { key: "count", label: "Count", kind: "count", title: of("count") },
    { key: "self_cpu_ms", label: "Self host, ms", kind: "ms", bar: true, title: of("self host") },
    { key: "cpu_ms", label: "Host, ms", kind: "ms", title: of("host") },
    { key: "exclusive_cpu_ms", label: "Own host, ms", kind: "ms", extra: true, title: of("exclusive host") },
    { key: "self_device_ms", label: "Self device, ms", kind: "ms", bar: true, title: of("self device") },
    { key: "device_ms", label: "Device, ms", kind: "ms", title: of("device") },
    { key: "self_cpu_bytes", label: "Host memory", kind: "bytes", title: of("host memory"), extra: true },
    { key: "self_device_bytes", label: "Device memory", kind: "bytes", title: of("device memory"), extra: true },
    { key: "flops", label: "Flops", kind: "flops", title: of("flops") },
    ...rateColumns(),
  ];
}

// a link from a line of source or a module to its frame. Functions that ran at the start have a line number there
function frameLink(by, what, frames) {
  const said = by === "module" ? `nn.Module: ${what.split("/").pop()}` : what.split(", in ")[0];
  const name = frames.has(said) ? said : [...frames].find((each) => each.replace(/\(\d+\): /, ": ") === said);
  const model = by === "module" && moduleNames.has(said) ? frameName(said) : what;
  const shown = by === "line" ? what.split(", in ").map(frameName).join(", in ") : model;
  return name ? el("a", { href: address("flame", { at: name }), title: what }, shown) : shown;
}

function behindTable(title, by, rows, frames, explanation) {
  const onDevice = rows.some((row) => row.self_device_ms > 0);
  const time = (row) => (onDevice ? row.self_device_ms : row.self_cpu_ms);
  const whole = rows.reduce((sum, row) => sum + (time(row) || 0), 0);
  const lines = rows.map((row) =>
    el(
      "tr",
      null,
      el("td", { class: "name" }, frameLink(by, row.what, frames)),
      el("td", { class: "num" }, `${grouped(row.count, 0)} ×`),
      el("td", { class: "num" }, explanation ? percent(whole ? time(row) / whole : 0) : ms(time(row))),
    ),
  );
  const of = explanation ? ` in ${explanation.steps}, share of these` : "";
  const head = `${title}, ${onDevice ? "self device" : "self host"}${of}`;
  return el("table", { class: "behind" }, el("caption", null, head), el("tbody", null, lines));
}

// a function that returns the details of an operator; null if the trace has none
function behindOperators(details) {
  const rows = rowsOf(details.behind_operators);
  const frames = new Set(Object.values(details.flames || {}).flatMap((flame) => flame.names));
  const titles = { shapes: "Input shapes", line: "Your lines", module: "Modules" };
  return (row) => {
    const mine = rows.filter((each) => each.name === row.name);
    if (!mine.length) return null;
    const tables = Object.entries(titles).map(([by, title]) => [title, by, mine.filter((each) => each.by === by)]);
    return el(
      "div",
      { class: "pair" },
      tables
        .filter(([, , some]) => some.length)
        .map(([title, by, some]) => behindTable(title, by, some, frames, details.explanation)),
    );
  };
}

function rooflinePart(details) {
  const found = details.roofline;
  if (!found) return null;
  const of = details.explanation ? `, in ${details.explanation.steps}` : "";
  return el(
    "details",
    { class: "roofline", open: true },
    el("summary", null, `Roofline${of}`),
    el(
      "p",
      { class: "muted" },
      "Each circle is an operator with one shape; its size is its time. The lines are the limits of " +
        `${found.device} (${found.source}): memory on the left, compute of each data type on the right.`,
    ),
    rooflineFigure(found),
  );
}

function operatorsSection(details) {
  const tables = details.operators;
  if (!tables || !height(tables.name)) return null;
  const onDevice = rowsOf(tables.name).some((row) => row.self_device_ms > 0);
  const byShape = details.explanation ? `By shape, ${details.explanation.steps}` : "By shape";
  const extra = {
    name: ["By name", []],
    shapes: [byShape, [{ key: "input_shapes", label: "Input shapes", kind: "name" }]],
    step: ["By step", [{ key: "step", label: "Step", kind: "id" }]],
  };
  const groups = {};
  for (const [key, [label, columns]] of Object.entries(extra)) {
    if (tables[key] && height(tables[key]))
      groups[key] = { label, columns: operatorColumns(columns), rows: rowsOf(tables[key]) };
  }
  return section(
    "operators",
    "Operators",
    "Operators of torch in all profiled steps: their time on the host and the device work that they launched. Click " +
      "an operator for its shapes, lines and modules.",
    (details.limits || []).map((sentence) => el("p", { class: "lead" }, sentence)),
    rooflinePart(details),
    dataTable({
      id: "operators",
      caption: "Operators",
      groups,
      group: "name",
      sort: { key: onDevice ? "self_device_ms" : "self_cpu_ms", descending: true },
      search: "Search operators",
      limit: 14,
      open: behindOperators(details),
    }),
  );
}
