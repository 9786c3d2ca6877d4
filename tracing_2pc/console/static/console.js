// Says that a form works. Refreshes the regions marked data-live; leaves alone where somebody types or selects.
(() => {
  "use strict";
  // A form that waits for participants says so, and is sent once.
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button) return;
    if (button.hasAttribute("aria-busy")) return event.preventDefault();
    const [label, begun] = [button.textContent, Date.now()];
    button.setAttribute("aria-busy", "true");
    const tell = () => (button.textContent = `${label.replace(" …", "")}: working, ${Math.round((Date.now() - begun) / 1000)} s`);
    const telling = setInterval(tell, 1000);
    tell();
    window.addEventListener("pagehide", () => {
      clearInterval(telling);
      button.removeAttribute("aria-busy");
      button.textContent = label;
    }, { once: true });
  });

  const EVERY = 5000;
  const FRESH = "Refreshed every 5 s while you look.";
  const regions = () => [...document.querySelectorAll("[data-live]")];
  const fresh = document.getElementById("fresh");
  if (!fresh || !regions().length) return;
  let timer;

  const inUse = (region) => {
    const fields = [...region.querySelectorAll("input")];
    const selection = document.getSelection();
    return (
      region.querySelector("[aria-busy]") ||
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
    fresh.classList.toggle("old", text !== FRESH);
  };

  const old = (why) => say(`Not refreshed: ${why}. What you see may be old.`);

  const refusal = (answer, text) => {
    const said = new DOMParser().parseFromString(text, "text/html").querySelector("[role=alert]");
    return said?.textContent || `the console answered ${answer.status}`;
  };

  const refresh = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
      if (answer.type === "opaqueredirect") return location.reload();
      const text = await answer.text();
      if (!answer.ok && answer.status !== 404) return old(refusal(answer, text));
      apply(text);
      say(FRESH);
    } catch {
      old("the console does not answer");
    } finally {
      timer = setTimeout(refresh, EVERY);
    }
  };

  document.addEventListener("visibilitychange", refresh);
  say(FRESH);
  timer = setTimeout(refresh, EVERY);
})();
