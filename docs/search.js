// The theme's search takes each word for the beginning of one, and ranks a page that has one word in a title above one
// that has them all. Before it: leave out words such as "how do I" and a batch's number, and cut the others to their
// stem. After it: rank by BM25F, section by section: rare words count most, a title more than a text, and a page's title
// a little for each section; all of it times what the page says of itself (`search: boost`).
{
  const TITLE = 6, PAGE = 0.5, LONG = 0.4, ENOUGH = 1.2

  const stemmed = (word) => lunr.stemmer(new lunr.Token(word)).toString()
  const SAME = new Map([["postgres", "postgresql"], ["k8s", "kubernetes"], ["died", "dead"]])
  const split = (text) => text.replace(/<[^>]+>|&\w+;/g, " ").toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter((word) => word)
    .map((word) => SAME.get(word) ?? word)
  const says = (word) => lunr.stopWordFilter(word) && !/^((?!go$)\p{L}{1,2}|need|want|use|happens?|works?|possible)$/u.test(word)

  const count = (text) => {
    const words = split(text).filter(says)
    const found = new Map()
    for (const word of words) {
      for (const part of new Set([word, ...word.split("_")].map(stemmed))) found.set(part, (found.get(part) ?? 0) + 1)
    }
    return {found, length: words.length}
  }

  let sections = new Map(), having = new Map(), mean = 1, asked = []

  const read = (docs) => {
    const titles = new Map(docs.map(({location, title}) => [location, title]))
    sections = new Map(docs.map(({location, title, text, boost = 1}) => [location, {
      boost, title: count(title).found, text: count(text), page: count(titles.get(location.split("#")[0]) ?? "").found,
    }]))
    for (const {title, text, page} of sections.values()) {
      for (const word of new Set([title, text.found, page].flatMap((found) => [...found.keys()]))) {
        having.set(word, (having.get(word) ?? 0) + 1)
      }
      mean += text.length / sections.size
    }
  }

  const worth = (location) => {
    const {boost, title, text, page} = sections.get(location)
    return boost * asked.reduce((sum, word) => {
      const often = (text.found.get(word) ?? 0) / (1 - LONG + LONG * text.length / mean)
        + TITLE * (title.get(word) ?? 0) + PAGE * (page.get(word) ?? 0)
      const rare = Math.log(1 + sections.size / (having.get(word) ?? 1))
      return sum + rare * often / (often + ENOUGH)
    }, 0)
  }

  addEventListener("message", ({data}) => {
    if (data.data?.docs) return read(data.data.docs)
    if (typeof data.data !== "string" || /(^|\s)[+-]|["+:^~*]/.test(data.data)) return asked = []  // the theme's own signs
    const words = split(data.data.replace(/\b(batch|transaction) \d+/gi, "$1")), kept = words.filter(says)
    const sought = kept.length ? kept : words
    asked = [...new Set(sought.map(stemmed))]
    data.data = sought.map((word) => {
      let short = stemmed(word)
      while (!word.startsWith(short)) short = short.slice(0, -1)
      return short.length > 2 ? short : word
    }).join(" ")
  })

  const answer = postMessage.bind(self)
  self.postMessage = (message) => {
    if (asked.length) {
      for (const hits of message.data?.items ?? []) {
        for (const hit of hits) hit.score = worth(hit.location)
        hits.sort((a, b) => b.score - a.score)
      }
      message.data?.items?.sort((a, b) => b[0].score - a[0].score)
    }
    answer(message)
  }
}
