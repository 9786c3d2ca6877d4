// A participant with three methods, in a language that the library is not written in.
//
// It keeps a stock: the records of a branch, {item, count}, are added to it when their
// transaction is committed. What it answers is in its journal, flushed to the disk,
// before it is answered; see journal.go. It answers no Ask.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "example.org/stock/participant"
)

const mostBytes = 64 << 20 // of a branch: it is held in memory here

type server struct {
	pb.UnimplementedTransactionParticipantServiceServer
	name, token string
	lock        sync.Mutex
	journal     *journal
}

// admit refuses who has no token, and a request that another participant is meant by.
func (s *server) admit(ctx context.Context) (misdirected bool, err error) {
	given := func(key string) string {
		if values := metadata.ValueFromIncomingContext(ctx, key); len(values) == 1 {
			return values[0]
		}
		return ""
	}
	if s.token != "" && given("authorization") != "Bearer "+s.token {
		return false, status.Error(codes.Unauthenticated, "this token is not known here")
	}
	return given("tpc-participant") != s.name, nil
}

func (s *server) Prepare(stream pb.TransactionParticipantService_PrepareServer) error {
	misdirected, err := s.admit(stream.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	body := bytes.NewBuffer(first.Payload)
	for message := first; ; body.Write(message.Payload) {
		if message, err = stream.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err // the caller has gone: nothing was prepared
		}
		if body.Len() > mostBytes {
			return status.Error(codes.ResourceExhausted, "a branch is too large")
		}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if misdirected {
		answer := s.vote(first, pb.Vote_VOTE_ABORT, "another participant is meant")
		answer.Refusal = pb.Refusal_REFUSAL_MISDIRECTED
		return stream.SendAndClose(answer)
	}
	answer, err := s.prepare(first, body.Bytes())
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

func (s *server) prepare(asked *pb.PrepareRequest, body []byte) (*pb.PrepareResponse, error) {
	application, batch, ok := parse(asked.TransactionId)
	if !ok || asked.Branch.GetBranch() == "" {
		return s.vote(asked, pb.Vote_VOTE_ABORT, "no transaction, or no branch"), nil
	}
	known := s.journal.transactions[asked.TransactionId]
	if through, some := s.journal.forgotten[application]; some && batch <= through {
		answer := s.vote(asked, pb.Vote_VOTE_ABORT, "at or below forgotten_through")
		answer.Refusal, answer.State = pb.Refusal_REFUSAL_FORGOTTEN, pb.State_STATE_FORGOTTEN
		return answer, nil
	}
	if known != nil && known.seal != "" {
		answer := s.vote(asked, pb.Vote_VOTE_ABORT, "this transaction is "+known.seal)
		answer.State = stateOf(known.seal)
		return answer, nil
	}
	if other := s.journal.committed[fmt.Sprintf("%s.%d", application, batch)]; other != "" {
		answer := s.vote(asked, pb.Vote_VOTE_ABORT, other+" has committed this batch")
		answer.State = pb.State_STATE_COMMITTED
		return answer, nil
	}
	if known != nil {
		if held, some := known.branches[asked.Branch.Branch]; some {
			if held.Decision == "prepared" && held.Digest == asked.Branch.Digest {
				return s.voteFor(asked, held), nil
			}
			answer := s.vote(asked, pb.Vote_VOTE_ABORT, "this branch is "+held.Decision)
			answer.State = stateOf(held.Decision)
			return answer, nil
		}
	}
	sum := sha256.Sum256(body)
	digest := "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	counts, rows, err := read(body)
	if err != nil || int64(len(body)) != asked.Length || digest != asked.Branch.Digest {
		return s.vote(asked, pb.Vote_VOTE_ABORT, fmt.Sprintf("not what was promised: %v", err)), nil
	}
	entry := line{
		Transaction: asked.TransactionId, Decision: "prepared", Branch: asked.Branch.Branch,
		Digest: digest, Rows: rows, Counts: counts,
	}
	if err := s.journal.write(entry); err != nil {
		return nil, s.broken(err)
	}
	return s.voteFor(asked, entry), nil
}

func (s *server) Commit(ctx context.Context, asked *pb.CommitRequest) (*pb.Outcome, error) {
	answer := s.outcome(asked.TransactionId)
	if misdirected, err := s.admit(ctx); misdirected || err != nil {
		return refuse(answer, pb.Refusal_REFUSAL_MISDIRECTED, "another participant is meant"), err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if refused := s.forgotten(answer); refused != nil {
		return refused, nil
	}
	if len(asked.Requires) > 0 {
		return refuse(answer, pb.Refusal_REFUSAL_MALFORMED, "a newer release's commit"), nil
	}
	known := s.journal.transactions[asked.TransactionId]
	if known != nil && known.seal == "aborted" {
		return conflict(answer, known.seal), nil
	}
	application, batch, _ := parse(asked.TransactionId)
	other := s.journal.committed[fmt.Sprintf("%s.%d", application, batch)]
	unknown := other != "" && other != asked.TransactionId
	var names []string
	for _, branch := range asked.Branches {
		names = append(names, branch.Branch)
		if known == nil {
			unknown = true
		} else if held, some := known.branches[branch.Branch]; !some {
			unknown = true
		} else if held.Decision == "aborted" || held.Digest != branch.Digest {
			return conflict(answer, held.Decision), nil
		}
	}
	if unknown { // never an acknowledgement
		answer.State = pb.State_STATE_UNKNOWN
		return refuse(answer, pb.Refusal_REFUSAL_UNKNOWN, "not known here"), nil
	}
	if known == nil || known.seal == "" {
		entry := line{Transaction: asked.TransactionId, Decision: "committed", Branches: names}
		if err := s.journal.write(entry); err != nil {
			return nil, s.broken(err)
		}
	}
	answer.State = pb.State_STATE_COMMITTED
	return answer, s.forget(asked.TransactionId, asked.ForgottenThrough)
}

func (s *server) Rollback(ctx context.Context, asked *pb.RollbackRequest) (*pb.Outcome, error) {
	answer := s.outcome(asked.TransactionId)
	if misdirected, err := s.admit(ctx); misdirected || err != nil {
		return refuse(answer, pb.Refusal_REFUSAL_MISDIRECTED, "another participant is meant"), err
	}
	if len(asked.ProtoReflect().GetUnknown()) > 0 { // it may say that a part is meant
		return refuse(answer, pb.Refusal_REFUSAL_MALFORMED, "a newer release's rollback"), nil
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if refused := s.forgotten(answer); refused != nil {
		return refused, nil
	}
	known := s.journal.transactions[asked.TransactionId]
	entry := line{Transaction: asked.TransactionId, Decision: "aborted"}
	if asked.Branch != nil {
		entry.Branch = *asked.Branch
		held := line{}
		if known != nil {
			held = known.branches[entry.Branch]
		}
		differs := asked.Digest != nil && held.Digest != "" && held.Digest != *asked.Digest
		if held.Decision == "committed" || held.Decision == "prepared" && differs {
			return conflict(answer, held.Decision), nil
		}
	} else if known != nil && known.seal == "committed" {
		return conflict(answer, known.seal), nil
	}
	if known == nil || known.seal == "" {
		if err := s.journal.write(entry); err != nil {
			return nil, s.broken(err)
		}
	}
	answer.State = pb.State_STATE_ABORTED
	return answer, s.forget(asked.TransactionId, asked.ForgottenThrough)
}

func (s *server) forget(id string, through *int64) error {
	application, _, _ := parse(id)
	if before, some := s.journal.forgotten[application]; through == nil || some && *through <= before {
		return nil
	}
	return s.journal.write(line{Transaction: id, Decision: "forgotten", Through: *through})
}

func (s *server) forgotten(answer *pb.Outcome) *pb.Outcome {
	application, batch, ok := parse(answer.TransactionId)
	if !ok {
		return refuse(answer, pb.Refusal_REFUSAL_MALFORMED, "no transaction")
	}
	if through, some := s.journal.forgotten[application]; some && batch <= through {
		answer.State = pb.State_STATE_FORGOTTEN
		return refuse(answer, pb.Refusal_REFUSAL_FORGOTTEN, "at or below forgotten_through")
	}
	return nil
}

// broken ends the process: what the journal holds is only known by reading it anew.
func (s *server) broken(err error) error {
	log.Fatalf("the journal cannot be written: %v", err)
	return err
}

func (s *server) vote(asked *pb.PrepareRequest, vote pb.Vote, why string) *pb.PrepareResponse {
	return &pb.PrepareResponse{
		TransactionId: asked.TransactionId, ParticipantName: s.name, Vote: vote, Message: why,
	}
}

func (s *server) voteFor(asked *pb.PrepareRequest, held line) *pb.PrepareResponse {
	answer := s.vote(asked, pb.Vote_VOTE_COMMIT, "")
	answer.State = pb.State_STATE_PREPARED
	answer.Rows, answer.Digest = held.Rows, held.Digest
	return answer
}

func (s *server) outcome(id string) *pb.Outcome {
	return &pb.Outcome{TransactionId: id, ParticipantName: s.name}
}

func refuse(answer *pb.Outcome, refusal pb.Refusal, why string) *pb.Outcome {
	answer.Refusal, answer.Message = refusal, why
	return answer
}

func conflict(answer *pb.Outcome, state string) *pb.Outcome {
	answer.State = stateOf(state)
	return refuse(answer, pb.Refusal_REFUSAL_CONFLICT, "it is "+state+" here")
}

func stateOf(word string) pb.State {
	states := map[string]pb.State{
		"prepared":  pb.State_STATE_PREPARED,
		"committed": pb.State_STATE_COMMITTED,
		"aborted":   pb.State_STATE_ABORTED,
	}
	return states[word]
}

// read sums the records of a branch by item, and counts them.
func read(body []byte) (counts map[string]int64, rows int64, err error) {
	reader, err := ipc.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	defer reader.Release()
	counts = map[string]int64{}
	for reader.Next() {
		batch := reader.RecordBatch()
		for row := range int(batch.NumRows()) {
			item, isText := batch.Column(0).(*array.String)
			count, isNumber := batch.Column(1).(*array.Int64)
			if !isText || !isNumber || item.IsNull(row) || count.IsNull(row) {
				return nil, 0, errors.New("expected the columns item, a string, and count, a long")
			}
			if count.Value(row) < 0 {
				return nil, 0, errors.New("a negative count")
			}
			counts[item.Value(row)] += count.Value(row)
		}
		rows += batch.NumRows()
	}
	return counts, rows, reader.Err()
}

func main() {
	listen := flag.String("listen", "127.0.0.1:50052", "address:port")
	path := flag.String("journal", "stock.journal", "file that it keeps everything in")
	name := flag.String("name", "stock", "how the job calls this participant")
	show := flag.Bool("show", false, "print what is committed, and end")
	flag.Parse()
	journal, err := open(*path)
	if err != nil {
		log.Fatal(err)
	}
	if *show {
		json.NewEncoder(os.Stdout).Encode(journal.stock())
		return
	}
	socket, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	served := grpc.NewServer()
	s := &server{name: *name, token: os.Getenv("STOCK_TOKEN"), journal: journal}
	pb.RegisterTransactionParticipantServiceServer(served, s)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() { <-asked; served.GracefulStop() }()
	if err := served.Serve(socket); err != nil {
		log.Fatal(err)
	}
}
