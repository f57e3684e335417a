module mainstem/lines

go 1.24
