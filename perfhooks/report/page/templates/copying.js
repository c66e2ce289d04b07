// Copies of rows, as CSV or for a spreadsheet, and of lines of code.

// by RFC 4180
const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
// tabs and line breaks separate cells of a spreadsheet
const flat = (text) => text.replace(/[\t\r\n]+/g, " ");

function written(columns, rows, between, escape) {
  const line = (values) => values.map((value) => escape(known(value) ? String(value) : "")).join(between);
  return [line(columns.map((spec) => spec.key)), ...rows.map((row) => line(columns.map((spec) => row[spec.key])))];
}
const asCsv = (columns, rows) => `${written(columns, rows, ",", quoted).join("\r\n")}\r\n`;
const asCells = (columns, rows) => written(columns, rows, "\t", flat).join("\n");

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (error) {
    // some browsers deny the clipboard to local files, but copy a selection
    const area = el("textarea", { class: "hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

function copyButton(label, title, text) {
  const button = el("button", { type: "button", class: "plain copy", title }, label);
  button.addEventListener("click", async () => {
    await copy(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

function csvButton(name, text) {
  const click = () => save(name(), text());
  const title = "Save these rows as a file";
  return el("button", { type: "button", class: "plain copy", title, on: { click } }, "CSV");
}
