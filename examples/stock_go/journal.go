package main

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A line of the journal. A transaction has one for each branch that was prepared or
// aborted alone, and one for its decision, which seals it.
type line struct {
	Transaction string           `json:"transaction"`
	Decision    string           `json:"decision"` // prepared, committed, aborted, forgotten
	Branch      string           `json:"branch,omitempty"`
	Digest      string           `json:"digest,omitempty"`
	Rows        int64            `json:"rows,omitempty"`
	Counts      map[string]int64 `json:"counts,omitempty"`   // of a branch, by item
	Branches    []string         `json:"branches,omitempty"` // that a commit named
	Through     int64            `json:"through,omitempty"`  // forgotten_through
}

type transaction struct {
	branches map[string]line // prepared, and what became of them in Decision
	seal     string          // committed or aborted, once it is decided
}

// journal is all that the participant knows; what it holds in memory is read from it.
type journal struct {
	file         *os.File
	transactions map[string]*transaction
	committed    map[string]string // by application.batch: the attempt that committed
	forgotten    map[string]int64  // by application
}

func open(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{file, map[string]*transaction{}, map[string]string{}, map[string]int64{}}
	whole, reader := int64(0), bufio.NewReader(file)
	for {
		text, err := reader.ReadBytes('\n')
		var entry line
		if err != nil || json.Unmarshal(text, &entry) != nil {
			break // the end, or a line that a crash has cut: it was never answered
		}
		whole += int64(len(text))
		j.apply(entry)
	}
	if err := file.Truncate(whole); err != nil {
		return nil, err
	}
	_, err = file.Seek(whole, 0)
	return j, err
}

// write makes a line durable, and only then what is in memory.
func (j *journal) write(entry line) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	if _, err = j.file.Write(append(text, '\n')); err != nil {
		return err
	}
	if err = j.file.Sync(); err != nil {
		return err
	}
	j.apply(entry)
	return nil
}

func (j *journal) apply(entry line) {
	application, batch, _ := parse(entry.Transaction)
	if entry.Decision == "forgotten" {
		j.forgotten[application] = max(j.forgotten[application], entry.Through)
		return
	}
	known := j.transactions[entry.Transaction]
	if known == nil {
		known = &transaction{branches: map[string]line{}}
		j.transactions[entry.Transaction] = known
	}
	switch {
	case entry.Branch != "":
		if held, ok := known.branches[entry.Branch]; ok {
			held.Decision = entry.Decision
			entry = held
		}
		known.branches[entry.Branch] = entry
	default:
		known.seal = entry.Decision
		for name, held := range known.branches {
			if held.Decision == "prepared" {
				held.Decision = "aborted"
				if slices.Contains(entry.Branches, name) {
					held.Decision = "committed"
				}
				known.branches[name] = held
			}
		}
		if entry.Decision == "committed" {
			j.committed[application+"."+strconv.FormatInt(batch, 10)] = entry.Transaction
		}
	}
}

// stock sums up what is committed.
func (j *journal) stock() map[string]int64 {
	stock := map[string]int64{}
	for _, known := range j.transactions {
		for _, held := range known.branches {
			if held.Decision == "committed" {
				for item, count := range held.Counts {
					stock[item] += count
				}
			}
		}
	}
	return stock
}

// parse reads <application>.<batch>.<attempt>.
func parse(id string) (application string, batch int64, ok bool) {
	parts := strings.Split(id, ".")
	if len(parts) != 3 || parts[0] == "" {
		return "", 0, false
	}
	batch, err := strconv.ParseInt(parts[1], 10, 64)
	_, other := strconv.ParseInt(parts[2], 10, 64)
	return parts[0], batch, err == nil && other == nil
}
