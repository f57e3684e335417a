// The raw mode, `franz raw`: requests as they are written, without a client's help.
//
// One JSON object a line: {"address": HOST:PORT, "key": API key, "version": version, "body": the request as kmsg names
// its fields}. The answer is a line too: {"answer": the response as kmsg names its fields}, {"closed": why}, or
// {"error": what is wrong with the line}. Every request has its own connection, so that one that is closed takes no
// other with it; {"connection": NAME} shares one, {"client": ID} names who asks.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const apiVersionsKey = 18

type rawRequest struct {
	Address    string          `json:"address"`
	Connection string          `json:"connection"`
	Client     string          `json:"client"`
	Source     string          `json:"source"`
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
		} else if body, err := message(&request); err != nil {
			answer["error"] = err.Error()
		} else if response, err := exchange(connections, &request, body, number); err != nil {
			answer["closed"] = err.Error()
		} else {
			answer["answer"] = plain(reflect.ValueOf(response).Elem())
		}
		text, err := json.Marshal(answer)
		if err != nil {
			text = []byte(fmt.Sprintf(`{"error": %q}`, err.Error()))
		}
		os.Stdout.Write(append(text, '\n'))
	}
}

// message is the request with the fields that the script gives it, and kmsg's defaults for the others.
func message(r *rawRequest) (kmsg.Request, error) {
	request := kmsg.RequestForKey(r.Key)
	if request == nil {
		return nil, fmt.Errorf("there is no API %d", r.Key)
	}
	if defaults, ok := request.(interface{ Default() }); ok {
		defaults.Default()
	}
	var body any
	decoder := json.NewDecoder(strings.NewReader(string(r.Body)))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		return nil, err
	}
	if err := fill(reflect.ValueOf(request).Elem(), body); err != nil {
		return nil, err
	}
	request.SetVersion(r.Version)
	return request, nil
}

// fill sets a field from JSON. Unlike encoding/json it takes numbers for what kmsg has names for, so that a script can
// say what no name is for; and it refuses fields that are not there.
func fill(into reflect.Value, from any) error {
	switch from := from.(type) {
	case nil:
		into.SetZero()
		return nil
	case map[string]any:
		if into.Kind() == reflect.Pointer {
			into.Set(reflect.New(into.Type().Elem()))
			into = into.Elem()
		}
		for name, value := range from {
			var field reflect.Value
			if into.Kind() == reflect.Struct {
				field = into.FieldByName(name)
			}
			if !field.IsValid() {
				return fmt.Errorf("%s has no field %s", into.Type(), name)
			}
			if err := fill(field, value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	case []any:
		if into.Kind() == reflect.Slice {
			into.Set(reflect.MakeSlice(into.Type(), len(from), len(from)))
		}
		for at, value := range from {
			if err := fill(into.Index(at), value); err != nil {
				return err
			}
		}
		return nil
	case string:
		if into.Type() == reflect.TypeFor[[]byte]() {
			data, err := base64.StdEncoding.DecodeString(from)
			into.SetBytes(data)
			return err
		}
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	switch from := from.(type) {
	case string:
		if into.Kind() == reflect.String {
			into.SetString(from)
			return nil
		}
	case bool:
		if into.Kind() == reflect.Bool {
			into.SetBool(from)
			return nil
		}
	case json.Number:
		if into.CanFloat() {
			value, err := from.Float64()
			into.SetFloat(value)
			return err
		}
		value, err := from.Int64()
		if into.CanInt() {
			into.SetInt(value)
			return err
		} else if into.CanUint() {
			into.SetUint(uint64(value))
			return err
		}
	}
	return fmt.Errorf("%v is no %s", from, into.Type())
}

// plain is what encoding/json makes of a value, but for numbers that kmsg has names for: they stay numbers.
func plain(value reflect.Value) any {
	switch {
	case value.Kind() == reflect.Pointer && value.IsNil():
		return nil
	case value.Kind() == reflect.Pointer:
		return plain(value.Elem())
	case value.CanInt():
		return value.Int()
	case value.CanUint():
		return value.Uint()
	case value.Type() == reflect.TypeFor[[]byte]():
		return value.Bytes()
	case value.Kind() == reflect.Slice && value.IsNil():
		return nil
	case value.Kind() == reflect.Slice || value.Kind() == reflect.Array:
		list := make([]any, value.Len())
		for at := range list {
			list[at] = plain(value.Index(at))
		}
		return list
	case value.Type() == reflect.TypeFor[kmsg.Tags]():
		return nil
	case value.Kind() == reflect.Struct:
		fields := map[string]any{}
		for at := range value.NumField() {
			fields[value.Type().Field(at).Name] = plain(value.Field(at))
		}
		return fields
	}
	return value.Interface()
}

func exchange(
	connections map[string]net.Conn, r *rawRequest, request kmsg.Request, number int32,
) (kmsg.Response, error) {
	connection := connections[r.Connection]
	if connection == nil || r.Connection == "" {
		var err error
		dialer := net.Dialer{Timeout: requestTimeout}
		if r.Source != "" {
			dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(r.Source)}
		}
		if connection, err = dialer.Dial("tcp", r.Address); err != nil {
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
	client := r.Client
	if client == "" {
		client = "differential"
	}
	formatter := kmsg.NewRequestFormatter(kmsg.FormatterClientID(client))
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
