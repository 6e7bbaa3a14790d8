// Light and dark: the choice of the system, unless the user chooses another one.

const KEY = "ranker-console-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const system = matchMedia("(prefers-color-scheme: dark)");

/** Apply the theme, and let a button change it. */
export function startTheme(button) {
  const choice = () => localStorage.getItem(KEY) ?? "system";
  const apply = () => {
    const dark = choice() === "dark" || (choice() === "system" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = `Theme: ${choice()}`;
  };
  button.addEventListener("click", () => { localStorage.setItem(KEY, NEXT[choice()]); apply(); });
  system.addEventListener("change", apply);
  apply();
}
