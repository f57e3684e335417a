// The raw mode, `franz raw`: requests as they are written, without a client's help.
//
// One JSON object a line: {"address": HOST:PORT, "key": API key, "version": version, "body": the request as kmsg names
// its fields}. The answer is a line too: {"answer": the response as kmsg names its fields}, or {"closed": why}. Every
// request has its own connection, so that one that is closed takes no other with it; {"connection": NAME} shares one.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const apiVersionsKey = 18

type rawRequest struct {
	Address    string          `json:"address"`
	Connection string          `json:"connection"`
	Key        int16           `json:"key"`
	Version    int16           `json:"version"`
	Body       json.RawMessage `json:"body"`
}

func raw() {
	connections := map[string]net.Conn{}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for number := int32(1); ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		answer := map[string]any{}
		var request rawRequest
		if err := json.Unmarshal(line, &request); err != nil {
			answer["error"] = err.Error()
		} else if response, err := exchange(connections, &request, number); err != nil {
			answer["closed"] = err.Error()
		} else {
			answer["answer"] = response
		}
		text, err := json.Marshal(answer)
		if err != nil {
			text = []byte(fmt.Sprintf(`{"error": %q}`, err.Error()))
		}
		os.Stdout.Write(append(text, '\n'))
	}
}

func exchange(connections map[string]net.Conn, r *rawRequest, number int32) (kmsg.Response, error) {
	request := kmsg.RequestForKey(r.Key)
	if request == nil {
		return nil, fmt.Errorf("there is no API %d", r.Key)
	}
	if defaults, ok := request.(interface{ Default() }); ok {
		defaults.Default()
	}
	if err := json.Unmarshal(r.Body, request); err != nil {
		return nil, err
	}
	request.SetVersion(r.Version)
	connection := connections[r.Connection]
	if connection == nil || r.Connection == "" {
		var err error
		if connection, err = net.DialTimeout("tcp", r.Address, requestTimeout); err != nil {
			return nil, err
		}
		if r.Connection == "" {
			defer connection.Close()
		} else {
			connections[r.Connection] = connection
		}
	}
	if err := connection.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return nil, err
	}
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID("differential"))
	if _, err := connection.Write(formatter.AppendRequest(nil, request, number)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(connection, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(connection, frame); err != nil {
		return nil, err
	}
	reader := kbin.Reader{Src: frame}
	if correlation := reader.Int32(); correlation != number {
		return nil, fmt.Errorf("the answer has the number %d, the request had %d", correlation, number)
	}
	response := request.ResponseKind()
	response.SetVersion(r.Version)
	if request.IsFlexible() && r.Key != apiVersionsKey {
		kmsg.SkipTags(&reader)
	}
	if err := response.ReadFrom(reader.Src); err != nil {
		return nil, err
	}
	return response, nil
}
