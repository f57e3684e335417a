// Package lines is what the Go programs share: requests and answers as JSON lines, and records in them. The
// operations: matrix/program.py.
package lines

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
)

// Bytes is base64 in JSON, or null for nil; no bytes and nil differ.
type Bytes []byte

func (b Bytes) MarshalJSON() ([]byte, error) {
	if b == nil {
		return []byte("null"), nil
	}
	return json.Marshal(base64.StdEncoding.EncodeToString(b))
}

func (b *Bytes) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil || text == nil {
		*b = nil
		return err
	}
	decoded, err := base64.StdEncoding.DecodeString(*text)
	*b = append(Bytes{}, decoded...)
	return err
}

// Header is a pair of name and value in JSON.
type Header struct {
	Name  string
	Value Bytes
}

func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *Header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

type Record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp int64    `json:"timestamp"`
	Key       Bytes    `json:"key"`
	Value     Bytes    `json:"value"`
	Headers   []Header `json:"headers"`
}

// Request has the arguments of every operation.
type Request struct {
	ID          int               `json:"id"`
	Op          string            `json:"op"`
	Topic       string            `json:"topic"`
	Partitions  int32             `json:"partitions"`
	Configs     map[string]string `json:"configs"`
	Name        string            `json:"name"`
	Value       string            `json:"value"`
	Records     []Record          `json:"records"`
	Codec       string            `json:"codec"`
	Idempotent  bool              `json:"idempotent"`
	Transaction string            `json:"transaction"`
	Commit      bool              `json:"commit"`
	Group       string            `json:"group"`
	Offset      *int64            `json:"offset"`
	Ends        map[int32]int64   `json:"ends"`
	Committed   bool              `json:"committed"`
	Count       int               `json:"count"`
	Partition   int32             `json:"partition"`
	At          any               `json:"at"`
}

// Time is a time of ListOffsets: `at` in milliseconds, or Kafka's number for the first or the last offset.
func (r *Request) Time() int64 {
	switch at := r.At.(type) {
	case float64:
		return int64(at)
	case string:
		if at == "earliest" {
			return -2
		}
	}
	return -1
}

// Operation answers a request.
type Operation func(*Request) (any, error)

// Offers is the answer to the operation of that name.
func Offers(operations map[string]Operation, more, codecs, lacks []string) map[string]any {
	names := append([]string{}, more...)
	for name := range operations {
		names = append(names, name)
	}
	return map[string]any{"operations": names, "codecs": codecs, "lacks": lacks}
}

// Serve answers each line of standard input by the operation that it names.
func Serve(operations map[string]Operation) {
	input := bufio.NewReader(os.Stdin)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		request := &Request{}
		answer := map[string]any{}
		if err := json.Unmarshal(line, request); err != nil {
			answer["error"], answer["code"] = err.Error(), -1
		} else if result, err := operations[request.Op](request); err != nil {
			answer["error"], answer["code"] = err.Error(), -1
		} else {
			answer["result"] = result
		}
		answer["id"] = request.ID
		text, err := json.Marshal(answer)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}
