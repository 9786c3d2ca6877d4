// Refreshes the regions marked data-live; leaves alone where somebody types or selects.
(() => {
  "use strict";
  const EVERY = 5000;
  const regions = () => [...document.querySelectorAll("[data-live]")];
  const fresh = document.getElementById("fresh");
  if (!fresh || !regions().length) return;
  let timer;

  const inUse = (region) => {
    const fields = [...region.querySelectorAll("input")];
    const selection = document.getSelection();
    return (
      fields.some((f) => f === document.activeElement || f.value !== f.defaultValue) ||
      (selection && !selection.isCollapsed && region.contains(selection.anchorNode))
    );
  };

  const focusedIn = (region) => {
    const active = document.activeElement;
    if (!active || !region.contains(active)) return null;
    if (active.id) return `#${CSS.escape(active.id)}`;
    const href = active.getAttribute("href");
    if (href) return `a[href="${CSS.escape(href)}"]`;
    const labelled = active.getAttribute("aria-labelledby");
    if (labelled) return `[aria-labelledby="${CSS.escape(labelled)}"]`;
    const holder = active.closest("[id]");
    return `#${CSS.escape(holder.id)} > ${active.localName}`;
  };

  const replace = (region, newer) => {
    if (inUse(region)) return;
    const opened = [...region.querySelectorAll("details[open]")].map((one) => one.id);
    for (const id of opened) newer.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
    if (region.innerHTML === newer.innerHTML) return;
    const focused = focusedIn(region);
    const scrolled = [...region.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    region.replaceChildren(...newer.childNodes);
    region.querySelectorAll(".wide").forEach((one, n) => (one.scrollLeft = scrolled[n] || 0));
    if (focused) region.querySelector(focused)?.focus({ preventScroll: true });
  };

  const apply = (text) => {
    const found = new DOMParser().parseFromString(text, "text/html");
    const [x, y] = [window.scrollX, window.scrollY];
    // A notice is said once: it stays until the page is left.
    const notice = document.querySelector(".notice");
    for (const region of regions()) {
      const newer = found.getElementById(region.id);
      if (newer && notice && region.contains(notice)) newer.querySelector("h1").after(notice.cloneNode(true));
      if (newer) replace(region, newer);
    }
    document.title = found.title;
    window.scrollTo(x, y);
  };

  const say = (text) => {
    if (fresh.textContent !== text) fresh.textContent = text;
  };

  const refresh = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") return location.reload();
      if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
      apply(await answer.text());
      say("Refreshed every 5 s while you look.");
    } catch {
      say("Not refreshed: the console does not answer. What you see may be old.");
    }
    timer = setTimeout(refresh, EVERY);
  };

  document.addEventListener("visibilitychange", refresh);
  say("Refreshed every 5 s while you look.");
  timer = setTimeout(refresh, EVERY);
})();
