// Before the theme's search, which takes each word for the beginning of one, and ranks a page that has one word in a
// title above one that has them all: leave out words such as "how do I", cut the others to their stem, count the words.
addEventListener("message", ({data}) => {
  if (typeof data.data !== "string" || /["+:^~*-]/.test(data.data)) return  // its own signs
  const stem = (word) => {
    let short = lunr.stemmer(new lunr.Token(word)).toString()
    while (!word.startsWith(short)) short = short.slice(0, -1)
    return short.length > 2 ? short : word
  }
  const words = data.data.toLowerCase().split(/[^\p{L}\p{N}_.]+/u).filter((word) => word)
  const kept = words.filter((word) => lunr.stopWordFilter(word) && !/^((?!go$)\p{L}{1,2}|need|want|use|happens?|works?|possible)$/u.test(word))
  data.data = (kept.length ? kept : words).map(stem).join(" ")
})
const answer = postMessage.bind(self)
self.postMessage = (message) => {
  const worth = (hits) => Math.max(...hits.map(({score, parent, terms}) => {
    const met = Object.values(terms)
    const share = met.filter((there) => there).length / met.length || 0
    return score / (1 + (!parent + share) ** 2) * share ** 2  // the first: what the theme gives to a page's beginning
  }))
  message.data?.items?.sort((a, b) => worth(b) - worth(a))
  answer(message)
}
