// Kinds of work, compiled code, and idle time of devices.

function shareBar(label, rows, key) {
  const whole = rows.reduce((sum, row) => sum + (row[key] || 0), 0);
  if (!(whole > 0)) return null;
  const parts = rows.filter((row) => row[key] > 0);
  const said = parts.map((row) => `${row.category} ${percent(row[key] / whole)}`);
  return el(
    "div",
    { class: "share-bar" },
    el("span", { class: "muted" }, `${label}, ${ms(whole)}`),
    el(
      "div",
      { class: "share-track", role: "img", "aria-label": `${label}: ${said.join(", ")}` },
      parts.map((row, place) =>
        el("i", {
          title: `${said[place]}, ${ms(row[key])}`,
          style: { "flex-grow": row[key] / whole, background: `var(--work-${row.category})` },
        }),
      ),
    ),
  );
}

function compiledSection(details) {
  const made = details.compiled;
  if (!made) return null;
  const of = (term) => meaning("compiled", term);
  const rows = rowsOf(made.functions);
  const sum = (key) => rows.reduce((total, row) => total + (row[key] || 0), 0);
  const [graphs, recorded] = [sum("graphs"), sum("recorded")];
  const inStep = `Per step, compiled code runs for ${ms(made.inside_ms)} (${percent(made.inside_ms / made.step_ms)})`;
  const onDevice = made.busy_ms
    ? `, and launches ${percent(made.device_ms / made.busy_ms)} of the device’s work.`
    : ".";
  const spent = `${plural(graphs, "graph")} took ${ms(1000 * sum("seconds"))} to compile`;
  const when = recorded ? `, ${recorded} of them in this window` : "";
  const columns = [
    { key: "function", label: "Function", kind: "name", show: frameName },
    { key: "graphs", label: "Graphs", kind: "count", title: of("graphs") },
    { key: "recorded", label: "In this window", kind: "count" },
    { key: "operators", label: "Operators", kind: "count" },
    { key: "seconds", label: "Compiling, s", kind: "number", bar: true, title: of("compiling") },
    { key: "tracing_s", label: "Tracing, s", kind: "number", title: of("compiling") },
    { key: "backend_s", label: "Backend, s", kind: "number", title: of("compiling") },
    { key: "inductor_s", label: "Kernels, s", kind: "number", title: of("compiling") },
    { key: "reason", label: "Compiled again for", kind: "text", title: of("compiled again for") },
    { key: "failed", label: "Left uncompiled", kind: "text" },
  ];
  const lines = [
    { key: "line", label: "Line", kind: "name", show: frameName },
    { key: "within", label: "In your line", kind: "name", show: frameName },
    { key: "reason", label: "Why", kind: "text" },
    { key: "count", label: "Met", kind: "count", title: of("met") },
  ];
  return section(
    "compiled",
    "Compiled code",
    `${inStep}${onDevice}${rows.length ? ` ${spent}${when}.` : ""}`,
    rows.length
      ? dataTable({ id: "compiled", key: "function", caption: "Compiled functions", columns, rows, limit: 12 })
      : null,
    height(made.breaks)
      ? [
          el("h3", null, "Where graphs break"),
          dataTable({ id: "breaks", caption: "Broken graphs", columns: lines, rows: rowsOf(made.breaks), limit: 12 }),
        ]
      : null,
  );
}

function categoriesSection(details) {
  const rows = rowsOf(details.categories);
  if (!rows.length) return null;
  const of = (term) => meaning("categories", term);
  const columns = [
    { key: "category", label: "Kind of work", kind: "text", title: of("category") },
    { key: "device_ms", label: "Device, ms", kind: "ms", title: of("device") },
    { key: "device_percent", label: "Of the device, %", kind: "percent", title: of("device") },
    { key: "kernels", label: "Kernels", kind: "count" },
    { key: "host_ms", label: "Host, ms", kind: "ms", title: of("host") },
    { key: "host_percent", label: "Of the host, %", kind: "percent", title: of("host") },
    { key: "calls", label: "Operators", kind: "count" },
    { key: "names", label: "Most of it in", kind: "name", title: of("most of it in") },
  ];
  const bars = [shareBar("Device", rows, "device_ms"), shareBar("Host", rows, "host_ms")];
  return section(
    "categories",
    "Kinds of work",
    "Self times of operators and kernels by kind, summed over all profiled steps. Code between operators is omitted.",
    ...bars,
    legend(rows.map((row) => [row.category, `work-${row.category}`])),
    dataTable({ id: "kinds", key: "category", caption: "Kinds of work", columns, rows }),
  );
}

const kindColour = (kind) => `part-${kind === "other" ? "other-work" : kind}`;

/* Device time of a usual step: one bar, its parts, and causes of idle time. */
function deviceSection(details) {
  const device = details.device;
  if (!device) return null;
  const of = (term) => meaning("device", term);
  const parts = rowsOf(device.parts);
  const whole = parts.reduce((sum, row) => sum + row.ms, 0);
  const word = (row) => (row.kind === "idle" ? `idle, ${row.part}` : row.part);
  const said = parts.map((row) => `${word(row)} ${percent(row.ms / whole)}`);
  const bar = el(
    "div",
    { class: "share-bar" },
    el("span", { class: "muted" }, `A step, ${ms(whole)}`),
    el(
      "div",
      { class: "share-track parted", role: "img", "aria-label": said.join(", ") },
      parts.map((row, place) =>
        el("i", {
          title: `${said[place]}, ${ms(row.ms)}`,
          style: { "flex-grow": row.ms / whole, background: `var(--${kindColour(row.kind)})` },
        }),
      ),
    ),
  );
  const queue = device.queue || {};
  const line =
    `Launch queue: empty for ${percent(queue.empty)} of the time, up to 10 launches for ` +
    `${percent(queue["up to 10"])}, more for ${percent(queue.more)}, a full queue for ${percent(queue.full)}.`;
  const idle = rowsOf(device.idle);
  const columns = [
    ...(idle.some((row) => known(row.device)) ? [{ key: "device", label: "Device", kind: "count" }] : []),
    { key: "cause", label: "Idle for", kind: "text", title: of("idle for") },
    { key: "place", label: "Where in the step", kind: "text", word: true, title: of("where in the step") },
    { key: "name", label: "In", kind: "name", title: of("in, line") },
    { key: "line", label: "Line", kind: "name", show: frameName, title: of("in, line") },
    { key: "idle_ms", label: "Idle, ms", kind: "ms", bar: true, title: of("idle") },
    { key: "percent", label: "Of the step, %", kind: "percent" },
  ];
  const partColumns = [
    { key: "part", label: "Part", kind: "text", show: (_, row) => word(row), title: of("part") },
    { key: "ms", label: "A step, ms", kind: "ms", bar: true },
  ];
  return section(
    "device",
    "Device time",
    "The work of the devices in a usual step, and causes of idle time. The parts sum to the step.",
    bar,
    legend([...new Map(parts.map((row) => [row.kind === "idle" ? "idle" : row.part, kindColour(row.kind)]))]),
    el("p", { class: "muted", tip: of("queue") }, line),
    dataTable({ id: "device-parts", caption: "Parts", columns: partColumns, rows: parts }),
    idle.length ? dataTable({ id: "idle", caption: "Idle time", columns, rows: idle }) : null,
  );
}

function gapsSection(details) {
  const rows = rowsOf(details.gaps);
  if (!rows.length) return null;
  const of = (term) => meaning("gaps", term);
  const columns = [
    { key: "step", label: "Step", kind: "id" },
    { key: "start_ms", label: "From, ms", kind: "ms", title: of("from") },
    { key: "gap_ms", label: "Gap, ms", kind: "ms", bar: true, title: of("gap") },
    { key: "cause", label: "Most of it for", kind: "text", title: of("most of it for") },
    { key: "cause_ms", label: "Of it, ms", kind: "ms", title: of("most of it for") },
    { key: "name", label: "In", kind: "name", title: of("in, line") },
    { key: "line", label: "Line", kind: "name", show: frameName, title: of("in, line") },
  ];
  return section(
    "gaps",
    "Longest gaps",
    `The longest idle intervals of all devices, up to ${ms(rows[0].gap_ms)}, and their causes.`,
    dataTable({ id: "gaps", caption: "Longest gaps", columns, rows, sort: { key: "gap_ms", descending: true } }),
  );
}
