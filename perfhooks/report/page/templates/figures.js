// Charts by plotly, in the colours of the report. plotly is decompressed when the first chart becomes visible.

const PARTS = [
  ["data_ms", "waiting for data"],
  ["transfer_ms", "transfer"],
  ["forward_ms", "forward"],
  ["backward_ms", "backward"],
  ["optimizer_ms", "optimizer"],
  ["validation_ms", "validation"],
  ["checkpoint_ms", "checkpointing"],
  ["communication_ms", "communication"],
  ["other_ms", "other code"],
];
const ON_DEVICE = [
  ["compute_ms", "compute"],
  ["exposed_comm_ms", "exposed communication"],
  ["exposed_copy_ms", "exposed copies"],
  ["other_work_ms", "other steps’ work"],
  ["idle_ms", "idle"],
];
const OF_RANKS = [
  ["data_ms", "data"],
  ["compute_ms", "compute"],
  ["communication_ms", "communication"],
  ["other_ms", "other"],
  ["wait_ms", "wait for other ranks"],
];
const LEGEND = { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" };
const HORIZONTAL = 14; // maximum number of horizontal bars

let loading = null;
const figures = new Map();
const probe = el("i", { class: "hidden" });
document.body.append(probe);

// the colours of page.css, as the numbers that plotly needs
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

const colourOf = (key) => `part-${key.replace("_ms", "").replace(/_/g, "-")}`;

const partsLegend = (parts) => legend(parts.map(([key, label]) => [label, colourOf(key)]));

async function plotly() {
  if (loading === null) loading = unpack(document.getElementById("plotly").textContent);
  await loading;
  return window.Plotly;
}

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// make() returns {traces, layout}; it is called again when colours change
function figure(label, heightPx, make) {
  const box = el("div", { class: "figure", role: "img", "aria-label": label, style: { height: `${heightPx}px` } });
  figures.set(box, make);
  return box;
}

async function drawFigures() {
  for (const box of [...figures.keys()]) if (!box.isConnected) figures.delete(box);
  if (!figures.size) return;
  let library;
  try {
    library = await plotly();
  } catch (error) {
    for (const box of figures.keys())
      box.replaceChildren(el("p", { class: "muted" }, "This browser is too old to unpack the figures."));
    return;
  }
  for (const [box, make] of figures) {
    if (!box.isConnected) continue;
    const { traces, layout } = make();
    const font = {
      family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
      size: 12,
      color: colour("muted"),
    };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font,
      showlegend: false,
      dragmode: false,
      bargap: 0.28,
      margin: { l: 8, r: 16, t: 6, b: 30 },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { ...font, color: colour("ink") } },
    };
    await library.react(
      box,
      traces,
      { ...base, ...layout },
      { displayModeBar: false, responsive: true, showTips: false },
    );
  }
}

function axis(more) {
  return {
    gridcolor: colour("line"),
    zeroline: false,
    linecolor: colour("line"),
    fixedrange: true,
    exponentformat: "none",
    separatethousands: true,
    automargin: true,
    ...more,
  };
}

const stepLabel = (step) => (known(step) ? `step ${step}` : "whole trace");
const rowLabel = (row) => (known(row.rank) ? `rank ${row.rank}` : stepLabel(row.step));

function presentParts(rows, parts) {
  return parts.filter(([key]) => rows.some((row) => row[key] > 0));
}

function stacked(rows, parts, across, cut) {
  const ends = rows.map(() => 0);
  const whole = rows.map((row) => parts.reduce((sum, [each]) => sum + (row[each] || 0), 0));
  const longest = Math.min(Math.max(...whole), cut === null ? Infinity : cut);
  return presentParts(rows, parts).map(([key, label]) => {
    const values = rows.map((row) => row[key] || 0);
    const drawn = values.map((value, i) => {
      const room = cut === null ? value : Math.max(Math.min(value, cut - ends[i]), 0);
      ends[i] += value;
      return room;
    });
    const labels = rows.map((row) => (across ? rowLabel(row) : known(row.rank) ? row.rank : row.step));
    const fits = (i) => across && drawn[i] >= 0.09 * Math.min(whole[i], longest);
    const text = values.map((value, i) => (fits(i) ? percent(value / whole[i]) : ""));
    return {
      type: "bar",
      name: label,
      orientation: across ? "h" : "v",
      x: across ? drawn : labels,
      y: across ? labels : drawn,
      marker: { color: colour(colourOf(key)), line: { width: 0 } },
      text,
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
      constraintext: "inside",
      textfont: {
        color: colour(["idle_ms", "other_work_ms", "other_ms", "wait_ms"].includes(key) ? "ink" : "on-part"),
        size: 11,
      },
      hovertemplate: values.map(
        (value, i) =>
          `${label}<br><b>${ms(value)}</b>, ${percent(value / whole[i])}<extra>${rowLabel(rows[i])}</extra>`,
      ),
    };
  });
}

// the length at which bars are cut, so that usual bars stay readable; null if there are no outliers
function cutOf(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  const most = 3 * sorted[Math.floor((sorted.length - 1) / 2)];
  const usual = sorted.filter((value) => value <= most);
  return usual.length < sorted.length && usual.length && most > 0 ? 1.15 * usual[usual.length - 1] : null;
}

/* One bar of parts for each step or rank. baseline adds a bar for the unprofiled step; end is where bars are cut. */
function barsFigure(label, rows, parts, { baseline = null, end = null } = {}) {
  const across = rows.length <= HORIZONTAL;
  const unprofiled = across && known(baseline) ? ["unprofiled"] : [];
  const names = [...unprofiled, ...rows.map(rowLabel)];
  const make = () => {
    const time = axis({ ticksuffix: " ms", rangemode: "tozero", ...(end === null ? {} : { range: [0, end] }) });
    const unit = known(rows[0].rank) ? "rank" : "step";
    const category = across
      ? axis({ type: "category", categoryarray: [...names].reverse(), showgrid: false, ticklabelstandoff: 6 })
      : axis({ showgrid: false, tickformat: "d", title: { text: unit, standoff: 4 } });
    const [length, place, other] = across ? ["x", "y", "y"] : ["y", "x", "x"];
    const line = { [`${length}0`]: baseline, [`${length}1`]: baseline, [`${other}0`]: 0, [`${other}1`]: 1 };
    // a break mark and the value at the end of each cut bar
    const breaks = rows
      .map((row) => [row, parts.reduce((sum, [key]) => sum + (row[key] || 0), 0)])
      .filter(([, whole]) => end !== null && whole > end)
      .map(([row, whole]) => ({
        text: `// ${ms(whole)}`,
        [length]: end,
        [place]: across ? rowLabel(row) : row[unit],
        ...(across ? { xanchor: "right" } : { yanchor: "top", textangle: -90 }),
        showarrow: false,
        bgcolor: colour("bg"),
        borderpad: 1,
        font: { size: 11, color: colour("ink") },
      }));
    const bar = {
      type: "bar",
      orientation: "h",
      x: [baseline],
      y: unprofiled,
      marker: { color: colour("baseline"), line: { color: colour("faint"), width: 1 } },
      text: [ms(baseline)],
      textposition: "inside",
      insidetextanchor: "middle",
      textfont: { color: colour("muted"), size: 11 },
      hovertemplate: `median unprofiled step<br><b>${ms(baseline)}</b><extra></extra>`,
    };
    const dotted = { type: "line", ...line, [`${other}ref`]: "paper", line: { color: colour("faint"), dash: "dot" } };
    return {
      traces: [...(unprofiled.length ? [bar] : []), ...stacked(rows, parts, across, end)],
      layout: {
        barmode: "stack",
        bargap: rows.length > 100 ? 0 : 0.28,
        uniformtext: { mode: "hide", minsize: 10 },
        annotations: breaks,
        shapes: known(baseline) ? [{ ...dotted, line: { ...dotted.line, width: 1 } }] : [],
        margin: { l: across ? 84 : 8, r: 16, t: 6, b: across ? 30 : 40 },
        [`${length}axis`]: time,
        [`${place}axis`]: category,
      },
    };
  };
  return figure(`${label}; the tables have the numbers`, across ? 46 + 24 * names.length : 230, make);
}

function timelineFigure(rows) {
  const end = cutOf(rows.map((row) => row.wall_ms));
  const top = (value) => (end === null ? value : Math.min(value, end));
  const outliers = rows.filter((row) => end !== null && row.wall_ms > end);
  const apart = 0.07 * (rows[rows.length - 1].step - rows[0].step);
  const labelled = [];
  for (const row of [...outliers].sort((a, b) => b.wall_ms - a.wall_ms))
    if (labelled.every((other) => Math.abs(other.step - row.step) > apart)) labelled.push(row);
  const make = () => {
    const trace = (some, name, tone, more) => ({
      type: "scatter",
      mode: "markers",
      name,
      x: some.map((row) => row.step),
      y: some.map((row) => top(row.wall_ms)),
      line: { color: tone, width: 1.25 },
      marker: { color: tone, size: 4 },
      cliponaxis: false,
      hovertemplate: some.map((row) => `step ${row.step}<br><b>${ms(row.wall_ms)}</b><extra>${name}</extra>`),
      ...more,
    });
    const part = (recorded) => rows.filter((row) => row.recorded === recorded);
    const [unprofiled, profiled] = [part(false), part(true)];
    const traces = [
      trace(unprofiled, "unprofiled", colour("faint"), unprofiled.length > 60 ? { mode: "lines" } : {}),
      trace(profiled, "profiled", colour("accent"), { marker: { color: colour("accent"), size: 7 } }),
    ];
    if (outliers.length)
      traces.push(
        trace(outliers, "beyond the chart", colour("bad"), {
          mode: "markers+text",
          marker: { color: colour("bad"), size: 8, symbol: "triangle-up" },
          text: outliers.map((row) => (labelled.includes(row) ? ms(row.wall_ms) : "")),
          textposition: "top center",
          textfont: { size: 11, color: colour("ink") },
        }),
      );
    return {
      traces,
      layout: {
        // with few steps, plotly would put ticks between them
        xaxis: axis({
          showgrid: false,
          tickformat: "d",
          dtick: rows.length < 10 ? 1 : undefined,
          title: { text: "step", standoff: 4 },
        }),
        yaxis: axis({ ticksuffix: " ms", rangemode: "tozero", ...(end === null ? {} : { range: [0, end] }) }),
        showlegend: true,
        legend: { ...LEGEND, y: 1.1 },
        margin: { l: 8, r: 16, t: 44, b: 40 },
      },
    };
  };
  return figure("Wall time of every step of the run", 250, make);
}

function memoryFigure(device, levels, peak) {
  const times = column(levels, "time_ms");
  const unit =
    Math.max(...levels.allocated_bytes, ...(levels.reserved_bytes || [0])) >= 2 ** 30
      ? ["GiB", 2 ** 30]
      : ["MiB", 2 ** 20];
  const make = () => {
    const line = (key, name, tone, more) => ({
      type: "scatter",
      mode: "lines",
      name,
      x: times,
      y: levels[key].map((value) => value / unit[1]),
      line: { shape: "hv", color: tone, width: 1.5 },
      hovertemplate: `%{x:.3~r} ms<br><b>%{y:.3~r} ${unit[0]}</b><extra>${name}</extra>`,
      ...more,
    });
    const traces = [];
    if (levels.reserved_bytes)
      traces.push(
        line("reserved_bytes", "reserved", colour("faint"), {
          line: { shape: "hv", color: colour("faint"), width: 1.25, dash: "dot" },
        }),
      );
    traces.push(
      line("allocated_bytes", "allocated", colour("accent"), { fill: "tozeroy", fillcolor: colour("accent-soft") }),
    );
    const notes = peak
      ? [
          {
            x: peak.time_ms,
            y: peak.allocated_bytes / unit[1],
            text: `peak ${bytes(peak.allocated_bytes)}`,
            showarrow: true,
            arrowhead: 0,
            arrowcolor: colour("faint"),
            ax: 0,
            ay: -22,
            font: { color: colour("ink"), size: 12 },
          },
        ]
      : [];
    return {
      traces,
      layout: {
        annotations: notes,
        xaxis: axis({ ticksuffix: " ms", showgrid: false }),
        yaxis: axis({ ticksuffix: ` ${unit[0]}`, rangemode: "tozero" }),
        margin: { l: 8, r: 16, t: 30, b: 30 },
        showlegend: true,
        legend: LEGEND,
      },
    };
  };
  return figure(`Memory of ${device} over time`, 280, make);
}

/* Operators by operations per byte and speed, with the limits of the device. */
function rooflineFigure({ points, roofs, gb_per_s: speed }) {
  const rows = rowsOf(points);
  const slope = speed / 1000; // TFLOP/s for each FLOP/byte
  const tops = Object.entries(roofs).sort(([, a], [, b]) => b - a);
  const across = [...rows.map((row) => row.flops_per_byte), ...tops.map(([, top]) => top / slope)];
  const [left, right] = [Math.min(...across) / 3, Math.max(...across) * 6];
  const least = Math.min(...rows.map((row) => row.tflops_per_s), left * slope);
  const longest = Math.max(...rows.map((row) => row.ms));
  const shortened = (text) => (text.length > 60 ? `${text.slice(0, 57)}...` : text).replace(/</g, "&lt;");
  const make = () => ({
    traces: [
      ...tops.map(([name, top], i) => ({
        type: "scatter",
        mode: "lines+text",
        x: [left, Math.sqrt((left * top) / slope), top / slope, right],
        y: [left * slope, Math.sqrt(left * slope * top), top, top],
        text: ["", i ? "" : `${digits(speed)} GB/s`, "", `${name} ${digits(top)}`],
        textposition: "top left",
        textfont: { size: 11, color: colour("muted") },
        line: { color: colour("faint"), width: 1.25 },
        hoverinfo: "skip",
        cliponaxis: false,
      })),
      {
        type: "scatter",
        mode: "markers",
        x: rows.map((row) => row.flops_per_byte),
        y: rows.map((row) => row.tflops_per_s),
        marker: {
          color: colour("accent"),
          opacity: 0.6,
          size: rows.map((row) => 5 + 23 * Math.sqrt(row.ms / longest)),
          line: { width: 0 },
        },
        hovertemplate: rows.map(
          (row) =>
            `<b>${shortened(row.name)}</b> ${shortened(row.input_shapes)}<br>${ms(row.ms)}, %{y:.3~r} TFLOP/s, ` +
            `${percent(row.limit_percent / 100)} of its limit<extra></extra>`,
        ),
      },
    ],
    layout: {
      hovermode: "closest",
      xaxis: axis({
        type: "log",
        range: [Math.log10(left), Math.log10(right)],
        dtick: 1,
        showgrid: false,
        title: { text: "FLOP/byte", standoff: 4 },
      }),
      yaxis: axis({
        type: "log",
        range: [Math.log10(least / 2), Math.log10(tops[0][1] * 2)],
        dtick: 1,
        title: { text: "TFLOP/s", standoff: 4 },
      }),
      margin: { l: 8, r: 16, t: 16, b: 40 },
    },
  });
  return figure("Speed of each operator and limit of the device; the table below has the numbers", 320, make);
}

/* One lane for each counter over the time of the steps, with lines between steps. */
function countersFigure({ parts, lanes, count }) {
  const place = (i) => 1 - (i + 1) / lanes.length;
  const times = parts.begin_ms.flatMap((begin, i) => [begin, parts.end_ms[i]]);
  const twice = (values) => values.flatMap((value) => [value, value]);
  const begins = parts.step.map((step, i) => (i && step === parts.step[i - 1] ? null : i)).filter(known);
  const name = (lane) => lane.counter + (known(lane.device) ? `, device ${lane.device}` : "");
  const height = 0.62 / lanes.length;
  const make = () => {
    const layout = {
      xaxis: axis({ ticksuffix: " ms", showgrid: false, anchor: lanes.length > 1 ? `y${lanes.length}` : "y" }),
      margin: { l: 8, r: 16, t: 4, b: 30 },
      shapes: begins.slice(1).map((i) => ({
        type: "line",
        x0: parts.begin_ms[i],
        x1: parts.begin_ms[i],
        yref: "paper",
        y0: 0,
        y1: 1,
        line: { color: colour("line"), width: 1 },
      })),
      annotations: lanes.map((lane, i) => ({
        text: name(lane).replace(/</g, "&lt;"),
        x: 0,
        xref: "paper",
        xanchor: "left",
        y: place(i) + height,
        yref: "paper",
        yanchor: "bottom",
        showarrow: false,
        font: { size: 11, color: colour("ink") },
      })),
    };
    const traces = lanes.map((lane, i) => {
      const number = i ? i + 1 : "";
      layout[`yaxis${number}`] = axis({ domain: [place(i), place(i) + height], nticks: 3, rangemode: "tozero" });
      return {
        type: "scatter",
        mode: "lines",
        x: times,
        y: twice(lane.mean),
        yaxis: `y${number}`,
        line: { color: colour("accent"), width: 1.25 },
        hovertemplate: twice(parts.step).map(
          (step) => `%{x:.3~r} ms<br><b>%{y:.3~r}</b><extra>${stepLabel(step)}</extra>`,
        ),
      };
    });
    return { traces, layout };
  };
  return el(
    "div",
    { class: "counters" },
    el("h3", null, "Counters during the steps"),
    figure("Counters over the steps, one lane for each", 34 + 62 * lanes.length, make),
    count > lanes.length
      ? el("p", { class: "muted" }, `${lanes.length} of ${count}: perfhooks show --table counters has all.`)
      : null,
  );
}
