// Creates elements. Data reaches the page only as text nodes and attributes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Create an HTML element; attributes that start with "on" are listeners, and with "--" custom CSS properties. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Create a table. `columns` are {label, number?}; each row is a list of cells: text, elements, or finished <td>. */
export function table(caption, columns, rows, empty = "nothing yet") {
  const cell = (value, index) => {
    if (value instanceof HTMLTableCellElement) return value;
    const attributes = { class: columns[index].number ? "number" : null, "data-label": columns[index].label };
    return index === 0 ? h("th", { scope: "row", ...attributes }, value) : h("td", attributes, value ?? "–");
  };
  const head = columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.label));
  const body = rows.length
    ? rows.map((row) => h("tr", {}, row.map(cell)))
    : [h("tr", {}, h("td", { colspan: columns.length, class: "soft" }, empty))];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Replace the children of an element, unless they would not change; keeps the keyboard focus by `data-key`. */
export function replace(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const scrolled = [...element.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== false));
  [...element.querySelectorAll(".scroll")].forEach((part, index) => { part.scrollLeft = scrolled[index] ?? 0; });
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
