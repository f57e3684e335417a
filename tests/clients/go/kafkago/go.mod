module mainstem/kafkago

go 1.24

require (
	github.com/segmentio/kafka-go v0.4.51
	mainstem/lines v0.0.0
)

require (
	github.com/klauspost/compress v1.15.9 // indirect
	github.com/pierrec/lz4/v4 v4.1.15 // indirect
)

replace mainstem/lines => ../lines
