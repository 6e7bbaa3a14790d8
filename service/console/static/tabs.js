// Tabs of the page: arrow keys move between them, and the address names the open one.

/** Start the tabs; `opened` is called with the name of each panel that opens. */
export function startTabs(list, opened) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const names = tabs.map((tab) => tab.getAttribute("aria-controls"));
  const open = (name) => {
    tabs.forEach((tab, index) => {
      const selected = names[index] === name;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      document.getElementById(names[index]).hidden = !selected;
    });
    opened(name);
  };
  const named = () => (names.includes(location.hash.slice(1)) ? location.hash.slice(1) : null);
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (!tab) return;
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    open(tab.getAttribute("aria-controls"));
  });
  list.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const index = tabs.indexOf(document.activeElement);
    const next = { Home: 0, End: tabs.length - 1 }[event.key] ?? (event.key in steps ? (index + steps[event.key] + tabs.length) % tabs.length : null);
    if (next === null || index < 0) return;
    event.preventDefault();
    tabs[next].focus();
    tabs[next].click();
  });
  addEventListener("hashchange", () => { if (named()) open(named()); });
  open(named() ?? names[0]);
}
